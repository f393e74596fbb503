#!/bin/sh
# Trains and evaluates the networks of the three questions, and writes the page. An interrupted call resumes: each
# command skips what is finished.
#   sh jobs/papers/robust_features/run.sh cifar10   small studies, more than six hours on one core
#   sh jobs/papers/robust_features/run.sh full      the original's size: an estimated 2,800 GPU-hours (`robust201 plan`)
# ROBUST201_DATA names a folder with cifar10/ and, for `full`, the published robust images in release_datasets/.
set -eu
size=$1
jobs=jobs/papers/robust_features
case $size in cifar10) runs=runs/robust-features-cifar10;; *) runs=runs/robust-features;; esac
if [ "$size" = cifar10 ]; then
  python -m jobs.papers.robust_features.make_images robust "$ROBUST201_DATA/cifar10" $runs/robust
else
  python -m jobs.papers.robust_features.make_images published "$ROBUST201_DATA/release_datasets/d_robust_CIFAR" $runs/robust
fi
for training in $jobs/$size/train-dynamics.yaml $jobs/$size/train-mixing.yaml $jobs/$size/train-equivariance.yaml $jobs/$size/train-group.yaml \
  $jobs/$size/train-transformers.yaml; do
  robust201 run "$training" --allow-code
done
for question in dynamics mixing equivariance equivariance-group; do
  robust201 plan $jobs/$size/$question.yaml
  robust201 run $jobs/$size/$question.yaml --allow-code
  robust201 export $runs/$question --no-json --parquet --outcomes bits --out $runs/$question-dataset
done
python -m jobs.papers.robust_features.analyse $runs/dynamics-dataset $runs/mixing-dataset $runs/equivariance-dataset \
  $runs/equivariance-group-dataset
if [ "$size" = cifar10 ]; then
  robust201 run $jobs/cifar10/train-natural.yaml
  python -m jobs.papers.robust_features.make_images non-robust "$ROBUST201_DATA/cifar10" $runs/non-robust
  robust201 run $jobs/cifar10/train-non-robust.yaml
fi
