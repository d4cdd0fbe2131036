#!/usr/bin/env bash
# Compiles main.cpp against the torch of $PYTHON:  build.sh OUTPUT
set -euo pipefail
if [ $# != 1 ]; then
  echo "usage: [PYTHON=python3] [CXX=g++] $0 OUTPUT" >&2
  exit 2
fi
torch=$("${PYTHON:-python3}" -c 'import torch; print(torch.__path__[0])')

# No symbol of it is named, but a package for a GPU needs it loaded: kept all the same.
cuda=()
if [ -e "$torch/lib/libtorch_cuda.so" ]; then
  cuda=(-Wl,--no-as-needed -ltorch_cuda -lc10_cuda)
fi

"${CXX:-g++}" -std=c++20 -O1 -Wall -Wextra "$(dirname "$0")/main.cpp" -o "$1" \
  -isystem "$torch/include" -L "$torch/lib" "-Wl,-rpath,$torch/lib" \
  "${cuda[@]}" -ltorch_cpu -lc10 -ldl
