#!/usr/bin/env bash
# Compiles main.cpp against the torch of $PYTHON:  build.sh OUTPUT
set -euo pipefail
if [ $# != 1 ]; then
  echo "usage: [PYTHON=python3] [CXX=g++] [CXXFLAGS=-O2] $0 OUTPUT" >&2
  exit 2
fi
torch=$("${PYTHON:-python3}" -c 'import torch; print(torch.__path__[0])')

# The package itself needs libtorch.so, and one for a GPU libtorch_cuda.so. main.cpp names no symbol
# of theirs: linked all the same, they are found beside the others.
libraries=(-ltorch -ltorch_cpu -lc10)
if [ -e "$torch/lib/libtorch_cuda.so" ]; then
  libraries+=(-ltorch_cuda)
fi

"${CXX:-g++}" -std=c++20 ${CXXFLAGS:--O2} -Wall -Wextra "$(dirname "$0")/main.cpp" -o "$1" \
  -isystem "$torch/include" -L "$torch/lib" "-Wl,-rpath,$torch/lib" \
  -Wl,--no-as-needed "${libraries[@]}" -ldl
