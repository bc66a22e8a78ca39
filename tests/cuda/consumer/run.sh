#!/usr/bin/env bash
# Builds and runs a user's CUDA program against a staged install.
#   run.sh cmake BUILD CMAKE_ARGUMENTS...     the project beside this script
#   run.sh nvcc STAGE BUILD NVCC FLAGS...     train.cu from one bare line
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
kind=$1
shift
case $kind in
  cmake)
    build=$1
    shift
    rm -rf "$build"
    cmake -S "$here" -B "$build" "$@"
    cmake --build "$build"
    "$build/consumer"
    ;;
  nvcc)
    stage=$1 build=$2 nvcc=$3
    shift 3
    rm -rf "$build" && mkdir -p "$build"
    "$nvcc" -std=c++20 -I"$stage/include" "$here/train.cu" -o "$build/train" "$@"
    "$build/train"
    ;;
  *) echo "run.sh: unknown kind $kind" >&2; exit 2 ;;
esac
