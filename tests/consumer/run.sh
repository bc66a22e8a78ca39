#!/usr/bin/env bash
# Builds and runs a user's program where nvcc and the CUDA toolkit are out of reach.
#   run.sh cmake PROJECT BUILD CMAKE_ARGUMENTS...   configure, build and run PROJECT
#   run.sh pkg-config STAGE BUILD CXX               the same from a bare compiler line
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

# The PATH without nvcc, the environment without CUDA; MPI as root as in every test.
hide_cuda() {
  local kept='' dir
  while IFS= read -r -d : dir; do
    [[ -x $dir/nvcc ]] || kept+=${kept:+:}$dir
  done <<<"$PATH:"
  PATH=$kept
  unset CUDA_HOME CUDA_PATH CUDA_ROOT CUDACXX NVCC_PREPEND_FLAGS CPATH CPLUS_INCLUDE_PATH
  ! command -v nvcc >/dev/null || { echo "run.sh: nvcc is still in reach" >&2; exit 1; }
}

here=$(cd "$(dirname "$0")" && pwd)
kind=$1
shift
hide_cuda

case $kind in
  cmake)
    project=$1 build=$2
    shift 2
    rm -rf "$build"
    cmake -S "$here/$project" -B "$build" "$@"
    cmake --build "$build"
    "$build/consumer"
    ;;
  pkg-config)
    stage=$1 build=$2 cxx=$3
    rm -rf "$build" && mkdir -p "$build"
    cp -r "$stage" "$build/moved"  # the prefix is relative: a moved tree works
    export PKG_CONFIG_PATH=$build/moved/share/pkgconfig
    read -ra cflags <<<"$(pkg-config --cflags polyrank)"
    read -ra libs <<<"$(pkg-config --libs polyrank)"
    [[ " ${cflags[*]} " == *"$build/moved"* ]] || { echo "run.sh: not the moved tree: ${cflags[*]}" >&2; exit 1; }
    for tu in main shard; do
      "$cxx" "${cflags[@]}" -c "$here/src/$tu.cpp" -o "$build/$tu.o"
    done
    "$cxx" "$build/main.o" "$build/shard.o" "${libs[@]}" -o "$build/consumer"
    "$build/consumer"
    ;;
  *) echo "run.sh: unknown kind $kind" >&2; exit 2 ;;
esac
