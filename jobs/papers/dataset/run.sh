#!/bin/sh
# Trains, evaluates and analyses cells on CIFAR-10. An interrupted call resumes: each command skips what is finished.
#   sh jobs/papers/dataset/run.sh             all 144 cells: 10 to 15 minutes per cell on one core
#   sh jobs/papers/dataset/run.sh 21,13714    only these cells
#   sh jobs/papers/dataset/run.sh --shipped   only the analysis of the shipped results: two minutes
# ROBUST201_DATA names a folder with cifar10/ and imagecorruptions-frost/ (robust201 fetch).
set -eu
jobs=jobs/papers/dataset
runs=runs/cells-cifar10
export=benchmark_data/cells-cifar10
partial=
if [ "${1:-}" != --shipped ]; then
  cells=${1:+--architectures $1} partial=${1:+--partial} export=$runs/dataset
  robust201 plan $jobs/cells.yaml $cells
  robust201 run $jobs/train.yaml $cells
  robust201 run $jobs/cells.yaml $cells
  # A partial export ends with exit code 3, because the other cells are missing.
  robust201 export $runs/results --parquet --outcomes bits --out $export $partial || [ "$?$partial" = 3--partial ]
fi
python -m jobs.papers.dataset.analyse $export
robust201 plot all $export --format svg --out $runs/figures
for figure in $jobs/figures/*.svg; do
  new=$runs/figures/cifar10-$(basename "$figure")
  [ ! -e "$new" ] || cp "$new" "$figure"  # some figures need more than a few cells
done
