"""An ensemble of multilayer perceptrons for regression in NumPy.

Networks and training are as in naszilla: ten hidden layers of 20 ReLU units, mean absolute error, Adam with a learning
rate of 0.01 and decay rates of 0.9 and 0.99, 150 epochs in batches of 32, and weights initialised as in Keras (Glorot
and Bengio, AISTATS 2010). The networks of an ensemble are stacked into the same arrays, which amortises NumPy's
overhead.
"""

import numpy as np
from numpy.typing import NDArray

LAYERS = 10
WIDTH = 20
LEARNING_RATE = 0.01
FIRST_DECAY, SECOND_DECAY = 0.9, 0.99
EPOCHS = 150
TRAINING_BATCH_SIZE = 32

_EPSILON = 1e-7
"""Constant in Adam's denominator; Keras's default."""

_FLUSH_STEPS = 100
"""Interval, in steps, at which negligible moments are set to zero."""

_MIN_MOMENT = np.float32(1e-30)
"""First moments of smaller magnitude do not affect the parameters. They are set to zero, because moments of inactive
units decay towards zero, and computing with subnormal numbers is several times slower."""

_Array = NDArray[np.float32]


def fit_and_predict(
    features: _Array,
    targets: NDArray[np.float64],
    inputs_to_predict: _Array,
    rng: np.random.Generator,
    *,
    size: int,
    epochs: int = EPOCHS,
) -> NDArray[np.float64]:
    """Train an ensemble, and return its predictions.

    Args:
        features: (n, d) training inputs.
        targets: (n,) training targets.
        inputs_to_predict: (m, d) inputs for which outputs are predicted.
        rng: random generator, for the initial weights and then the order of samples in each epoch.
        size: number of networks.
        epochs: number of training epochs.

    Returns:
        (size, m) predictions.
    """
    n, d = features.shape
    networks = _Networks(rng, size, d)
    inputs = np.ones((n, d + 1), dtype=np.float32)
    inputs[:, :d] = features
    expected = targets.astype(np.float32)
    for order in rng.permuted(np.tile(np.arange(n), (epochs, size, 1)), axis=2):
        for start in range(0, n, TRAINING_BATCH_SIZE):
            batch = order[:, start : start + TRAINING_BATCH_SIZE]
            networks.step(inputs[batch], expected[batch])
    return networks.predict(inputs_to_predict)


class _Networks:
    """A stack of N networks.

    Values of a layer have shape (N, units, b), for a batch of b samples, because BLAS multiplies this layout fastest
    for 32 samples and 20 units. A layer's bias is the last column of its weights, and its input has a last row of ones.
    Parameters, gradients and moments are each a flat array, so that Adam takes few operations.
    """

    def __init__(self, rng: np.random.Generator, n: int, n_features: int) -> None:
        self.shapes = [(WIDTH, n_features + 1), *[(WIDTH, WIDTH + 1)] * (LAYERS - 1), (1, WIDTH + 1)]
        n_parameters = n * sum(rows * columns for rows, columns in self.shapes)
        self.parameters, self.gradients, self.first_moments, self.second_moments, self.scratch = np.zeros(
            (5, n_parameters), dtype=np.float32
        )
        self.weights = self._split_by_layer(self.parameters, n)
        self.weight_gradients = self._split_by_layer(self.gradients, n)
        for layer in self.weights:
            outputs, inputs = layer.shape[1], layer.shape[2] - 1
            limit = np.sqrt(6 / (inputs + outputs))
            layer[:, :, :inputs] = rng.uniform(-limit, limit, size=(n, inputs, outputs)).transpose(0, 2, 1)
        self.n_networks = n
        self.steps = 0
        self.buffers: dict[int, _Buffers] = {}

    def _split_by_layer(self, flat: _Array, n: int) -> list[_Array]:
        views, start = [], 0
        for rows, columns in self.shapes:
            end = start + n * rows * columns
            views.append(flat[start:end].reshape(n, rows, columns))
            start = end
        return views

    def step(self, inputs: _Array, expected: _Array) -> None:
        """Perform an Adam step on a batch of inputs (N, b, d + 1) and expected outputs (N, b)."""
        batch_size = inputs.shape[1]
        if batch_size not in self.buffers:
            self.buffers[batch_size] = _Buffers(self.n_networks, batch_size)
        buffers = self.buffers[batch_size]
        inputs_of_layer = inputs.transpose(0, 2, 1)
        for layer, layer_outputs in zip(self.weights, buffers.hidden, strict=False):
            np.matmul(layer, inputs_of_layer, out=layer_outputs[:, :WIDTH])
            np.maximum(layer_outputs, buffers.zeros, out=layer_outputs)
            inputs_of_layer = layer_outputs
        output_gradient = np.sign(np.matmul(self.weights[-1], inputs_of_layer) - expected[:, None]) / np.float32(
            batch_size
        )
        for index in range(LAYERS, -1, -1):
            inputs_of_layer = buffers.hidden[index - 1].transpose(0, 2, 1) if index else inputs
            np.matmul(output_gradient, inputs_of_layer, out=self.weight_gradients[index])
            if index:
                transposed_weights = self.weights[index][:, :, :WIDTH].transpose(0, 2, 1)
                layer_gradient = buffers.gradients[index % 2]
                multiply = np.multiply if index == LAYERS else np.matmul  # BLAS is slower for an outer product
                output_gradient = multiply(transposed_weights, output_gradient, out=layer_gradient[:, :WIDTH])
                np.greater(buffers.hidden[index - 1], buffers.zeros, out=buffers.is_active)
                layer_gradient *= buffers.is_active
        self._take_adam_step()

    def _take_adam_step(self) -> None:
        self.steps += 1
        first, second, scratch = self.first_moments, self.second_moments, self.scratch
        # The moments omit Adam's factors 1 - decay; `second_moment_scale` and `rate` contain them instead.
        first *= np.float32(FIRST_DECAY)
        first += self.gradients
        if self.steps % _FLUSH_STEPS == 0:
            first *= np.abs(first) >= _MIN_MOMENT
        second *= np.float32(SECOND_DECAY)
        np.multiply(self.gradients, self.gradients, out=scratch)
        second += scratch
        second_moment_scale = (1 - SECOND_DECAY) / (1 - SECOND_DECAY**self.steps)
        rate = LEARNING_RATE * (1 - FIRST_DECAY) / (1 - FIRST_DECAY**self.steps) / np.sqrt(second_moment_scale)
        np.sqrt(second, out=scratch)
        scratch += np.float32(_EPSILON / np.sqrt(second_moment_scale))
        np.divide(first, scratch, out=scratch)
        scratch *= np.float32(rate)
        self.parameters -= scratch

    def predict(self, inputs: _Array) -> NDArray[np.float64]:
        """Return the outputs (N, m) for inputs (m, d)."""
        activations = _append_ones(np.broadcast_to(inputs.T, (self.n_networks, *inputs.T.shape)))
        for layer in self.weights[:-1]:
            activations = _append_ones(np.maximum(np.matmul(layer, activations), 0))
        outputs: _Array = np.matmul(self.weights[-1], activations)
        return outputs[:, 0].astype(np.float64)


def _append_ones(values: _Array) -> _Array:
    """Append a row of ones to each (units, b) matrix."""
    return np.concatenate([values, np.ones_like(values[:, :1])], axis=1)


class _Buffers:
    """Preallocated arrays of a training step, for one batch size.

    All arrays have shape (N, width + 1, b), because NumPy is several times slower with views and scalar operands.

    Attributes:
        hidden: values of each hidden layer, with a row of ones.
        is_active: whether each unit is positive, so that it propagates the gradient.
        zeros: operand of comparisons with zero.
        gradients: two arrays for gradients of layer outputs, used alternately; their last row is unused.
    """

    def __init__(self, n: int, batch_size: int) -> None:
        shape = (n, WIDTH + 1, batch_size)
        self.hidden = np.ones((LAYERS, *shape), dtype=np.float32)
        self.is_active = np.empty(shape, dtype=np.bool_)
        self.zeros, *self.gradients = np.zeros((3, *shape), dtype=np.float32)
