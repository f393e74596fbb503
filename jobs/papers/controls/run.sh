#!/bin/sh
# Attacks networks that others trained, with both engines and with direct calls of the libraries, and prints the tables
# of README.md. An interrupted call resumes. Each engine needs about 0.2 hours of one core for the LeNets, 0.8 for
# keras-cnn and 1.6 for resnet18; published.yaml needs 2.8.
#   pip install h5py   # reads Keras's weights, without TensorFlow
#   pip download --no-deps --no-binary advertorch advertorch==0.2.3 cifar-10-model==7.4.0 -d packages
# ROBUST201_CONTROLS names the folder packages; ROBUST201_DATA a folder with the official files, unpacked, in cifar10/ and mnist/.
set -eu
python -m jobs.papers.controls.prepare "$ROBUST201_CONTROLS" "$ROBUST201_DATA"   # weights and images in runs/controls

for name in mnist keras resnet18; do
  sed s/fused/reference/ jobs/papers/controls/$name.yaml > runs/controls/$name-reference.yaml
  robust201 run jobs/papers/controls/$name.yaml --allow-code
  robust201 run runs/controls/$name-reference.yaml --allow-code
  for engine in fused reference; do
    robust201 export runs/controls/$name-$engine --parquet --outcomes bits --out runs/controls/$name-$engine-dataset
  done
done

for network in lenet-plain lenet-robust keras-cnn resnet18; do
  python -m jobs.papers.controls.by_hand $network
done

robust201 run jobs/papers/controls/published.yaml --allow-code
robust201 export runs/controls/published --parquet --outcomes bits --out runs/controls/published-dataset

python -m jobs.papers.controls.analyse
