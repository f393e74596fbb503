#!/bin/sh
# Trains networks on MNIST, CIFAR-10 and their blends, attacks them with FGSM, and writes README.md. If it
# is interrupted, run it again: each command skips finished work.
#   sh jobs/papers/image_distribution/run.sh lenet   LeNet, five seeds, 50 epochs: about four hours on one core
#   sh jobs/papers/image_distribution/run.sh full    the paper's size: an estimated 506 GPU-hours (`robust201 plan`)
# ROBUST201_DATA names a folder with mnist/ and cifar10/ (robust201 fetch).
set -eu
size=$1
jobs=jobs/papers/image_distribution
case $size in lenet) runs=runs/image-distribution-lenet;; *) runs=runs/image-distribution;; esac
python -m jobs.papers.image_distribution.fuse "$ROBUST201_DATA" $runs
for training in $jobs/$size/train*.yaml; do
  robust201 run "$training"
done
exports=
for sweep in $jobs/$size/plain*.yaml $jobs/$size/fusion*.yaml $jobs/$size/from-*.yaml; do
  robust201 plan "$sweep"
  robust201 run "$sweep"
  name=$(sed -n 's/^name: //p' "$sweep")
  robust201 export "$(sed -n 's/^results: //p' "$sweep")" --no-json --parquet --out "$runs/$name-dataset"
  exports="$exports $runs/$name-dataset"
done
# the control on the original MNIST images
robust201 run $jobs/mnist28/train.yaml --allow-code
robust201 run $jobs/mnist28/attack.yaml --allow-code
robust201 export runs/image-distribution-mnist28/results --no-json --parquet --out $runs/mnist28-dataset
python -m jobs.papers.image_distribution.analyse $exports $runs/mnist28-dataset
python -m jobs.papers.image_distribution.singular_values --fusion $runs/fusion-digit
# figures 3, 8 and 9; they show images of MNIST and CIFAR-10, and are not committed
python -m jobs.papers.image_distribution.pictures blends "$ROBUST201_DATA" $runs $runs/figure-3.png
if [ "$size" = lenet ]; then
  python -m jobs.papers.image_distribution.pictures attacked "$ROBUST201_DATA" $runs $runs/figures-8-and-9.png
fi
