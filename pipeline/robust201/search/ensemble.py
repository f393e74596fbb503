"""Ensembles of small regression networks, many trained together: multilayer perceptrons in NumPy.

The networks are those of naszilla: ten hidden layers of 20 ReLU units, mean absolute error, Adam with a learning rate
of 0.01 and decay rates of 0.9 and 0.99, 150 epochs in batches of 32, and weights initialised as in Keras (Glorot and
Bengio, AISTATS 2010). All networks of a call share one stack of matrices, which amortises NumPy's overhead; each
network's numbers are the same as if it were trained alone.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LAYERS = 10
WIDTH = 20
LEARNING_RATE = 0.01
FIRST_DECAY, SECOND_DECAY = 0.9, 0.99
EPOCHS = 150
BATCH = 32

_EPSILON = 1e-7
"""Added to Adam's denominator; Keras's default."""

_FLUSH_EVERY = 100
_NEGLIGIBLE = np.float32(1e-30)
"""First moments below this have no effect on parameters, and are regularly set to zero before they become subnormal.
Those of inactive units decay towards zero, and processors are several times slower at subnormal numbers."""

_Array = NDArray[np.float32]


def fit_and_predict(
    features: Sequence[_Array],
    targets: Sequence[NDArray[np.float64]],
    inputs_to_predict: Sequence[_Array],
    rngs: Sequence[np.random.Generator],
    *,
    size: int,
    epochs: int = EPOCHS,
) -> list[NDArray[np.float64]]:
    """Train an ensemble on each of several problems, and predict.

    Args:
        features: (n, d) training inputs of each problem, of equal shapes.
        targets: (n,) training targets of each problem.
        inputs_to_predict: (m, d) inputs to predict for; m may differ between problems.
        rngs: each problem's random generator, for the weights and then the order of samples in each epoch.
        size: number of networks per ensemble.
        epochs: number of training epochs.

    Returns:
        (size, m) predictions of each problem.
    """
    n, d = features[0].shape
    networks = _Networks(rngs, size, d)
    inputs = np.ones((len(features), n, d + 1), dtype=np.float32)
    inputs[:, :, :d] = features
    outputs = np.asarray(targets, dtype=np.float32)
    orders = np.stack([rng.permuted(np.tile(np.arange(n), (epochs, size, 1)), axis=2) for rng in rngs])
    problem = np.arange(len(features))[:, None, None]
    for epoch in range(epochs):
        order = orders[:, epoch]
        shuffled = inputs[problem, order].reshape(-1, n, d + 1)
        expected = outputs[problem, order].reshape(-1, n)
        for start in range(0, n, BATCH):
            networks.step(shuffled[:, start : start + BATCH], expected[:, start : start + BATCH])
    return [networks.predict(points, index * size, size) for index, points in enumerate(inputs_to_predict)]


class _Networks:
    """A stack of N networks.

    Values of a layer are (N, units, b), with a batch's samples side by side: BLAS multiplies this layout fastest for 32
    samples and 20 units. A layer's bias is the last column of its weights, and its input has a last row of ones.
    Parameters, gradients and moments are each a flat array, so that Adam takes few operations.
    """

    def __init__(self, rngs: Sequence[np.random.Generator], size: int, n_features: int) -> None:
        n = len(rngs) * size
        self.shapes = [(WIDTH, n_features + 1), *[(WIDTH, WIDTH + 1)] * (LAYERS - 1), (1, WIDTH + 1)]
        n_parameters = n * sum(rows * columns for rows, columns in self.shapes)
        self.parameters, self.gradients, self.first, self.second, self.spare = np.zeros(
            (5, n_parameters), dtype=np.float32
        )
        self.weights = self._divide(self.parameters, n)
        self.slopes = self._divide(self.gradients, n)
        for index, rng in enumerate(rngs):
            for layer in self.weights:
                outputs, inputs = layer.shape[1], layer.shape[2] - 1
                limit = np.sqrt(6 / (inputs + outputs))
                sampled = rng.uniform(-limit, limit, size=(size, inputs, outputs))
                layer[index * size : (index + 1) * size, :, :inputs] = sampled.transpose(0, 2, 1)
        self.n = n
        self.steps = 0
        self.buffers: dict[int, _Buffers] = {}

    def _divide(self, flat: _Array, n: int) -> list[_Array]:
        views, start = [], 0
        for rows, columns in self.shapes:
            end = start + n * rows * columns
            views.append(flat[start:end].reshape(n, rows, columns))
            start = end
        return views

    def step(self, inputs: _Array, expected: _Array) -> None:
        """Perform an Adam step on a batch: inputs (N, b, d + 1) and outputs (N, b)."""
        count = inputs.shape[1]
        if count not in self.buffers:
            self.buffers[count] = _Buffers(self.n, count)
        buffers = self.buffers[count]
        below = inputs.transpose(0, 2, 1)
        for layer, above in zip(self.weights, buffers.hidden, strict=False):
            np.matmul(layer, below, out=above[:, :WIDTH])
            np.maximum(above, buffers.zeros, out=above)
            below = above
        slope = np.sign(np.matmul(self.weights[-1], below) - expected[:, None]) / np.float32(count)
        for index in range(LAYERS, -1, -1):
            below = buffers.hidden[index - 1].transpose(0, 2, 1) if index else inputs
            np.matmul(slope, below, out=self.slopes[index])
            if index:
                transposed = self.weights[index][:, :, :WIDTH].transpose(0, 2, 1)
                above = buffers.spare[index % 2]
                multiply = np.multiply if index == LAYERS else np.matmul  # BLAS is slower at an outer product
                slope = multiply(transposed, slope, out=above[:, :WIDTH])
                np.greater(buffers.hidden[index - 1], buffers.zeros, out=buffers.active)
                above *= buffers.active
        self._adam()

    def _adam(self) -> None:
        self.steps += 1
        first, second, spare = self.first, self.second, self.spare
        # The moments omit their factors 1 - decay; `variance` and `rate` make up for them.
        first *= np.float32(FIRST_DECAY)
        first += self.gradients
        if self.steps % _FLUSH_EVERY == 0:
            first *= np.abs(first) >= _NEGLIGIBLE
        second *= np.float32(SECOND_DECAY)
        np.multiply(self.gradients, self.gradients, out=spare)
        second += spare
        variance = (1 - SECOND_DECAY) / (1 - SECOND_DECAY**self.steps)
        rate = LEARNING_RATE * (1 - FIRST_DECAY) / (1 - FIRST_DECAY**self.steps) / np.sqrt(variance)
        np.sqrt(second, out=spare)
        spare += np.float32(_EPSILON / np.sqrt(variance))
        np.divide(first, spare, out=spare)
        spare *= np.float32(rate)
        self.parameters -= spare

    def predict(self, inputs: _Array, first: int, count: int) -> NDArray[np.float64]:
        """Return the outputs (count, m) of `count` networks, starting from index `first`, for inputs (m, d)."""
        values = _with_ones(np.broadcast_to(inputs.T, (count, *inputs.T.shape)))
        for layer in self.weights[:-1]:
            values = _with_ones(np.maximum(np.matmul(layer[first : first + count], values), 0))
        outputs: _Array = np.matmul(self.weights[-1][first : first + count], values)
        return outputs[:, 0].astype(np.float64)


def _with_ones(values: _Array) -> _Array:
    """Append a row of ones to each matrix of (N, units, b)."""
    return np.concatenate([values, np.ones_like(values[:, :1])], axis=1)


class _Buffers:
    """Working memory of a step, for one batch size.

    All arrays are (N, width + 1, b), because NumPy is several times slower for views and for scalar operands.

    Attributes:
        hidden: values of each hidden layer, with a row of ones.
        active: whether a unit propagates the gradient.
        zeros: operand of comparisons with zero.
        spare: two arrays for gradients of layers, whose last row is unused.
    """

    def __init__(self, n: int, count: int) -> None:
        shape = (n, WIDTH + 1, count)
        self.hidden = np.ones((LAYERS, *shape), dtype=np.float32)
        self.active = np.empty(shape, dtype=np.bool_)
        self.zeros, *self.spare = np.zeros((3, *shape), dtype=np.float32)
