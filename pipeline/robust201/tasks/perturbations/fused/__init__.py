"""The project's own attacks: all epsilons of a key together, on anything that gives logits and an input gradient.

What they compute is what Foolbox and AutoAttack compute, to the last bit where they are given the libraries' draws
(`replay.ReplayedDraws`) and the libraries' batches (`model.Batching`). Tests and `benchmarks/parity.py` prove it.
How they compute it is their own:

- an (image, epsilon) pair is one sample, and samples of all epsilons share batches;
- draws are named by what they are for (`draws.CounterDraws`), so a result does not depend on batches, on order, or on
  which other images and epsilons are there;
- what an image does not need is not computed: FGSM's epsilons share one gradient, Square drops the images that it has
  fooled, and nothing waits for the device inside a loop.

`fgsm`, `pgd`, `apgd` and `square` hold a `perturb` function each (see `tasks.perturbations.contract`) and below it
``attack(job, parameters)``, which takes model, draws and batches as they are given.
"""
