#!/usr/bin/env bash
# mpich_test.sh SOURCE_DIR: the retrofit example compiled against MPICH and run on 1 and 4 ranks gives
# the same bits. Skipped where MPICH is not installed beside Open MPI (Debian packages mpich, libmpich-dev).
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
root=$(realpath "$1")
for need in mpicxx.mpich mpirun.mpich; do
  command -v "$need" >/dev/null || { echo "skipped: no $need here"; exit 77; }
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mpicxx.mpich -std=c++20 -O1 -I"$root/include" "$root/examples/retrofit/after.cpp" -o after
for n in 1 4; do
  # MPICH must not take the variables of the launcher that runs this test.
  env -u PMI_SIZE -u PMI_RANK mpirun.mpich -n "$n" ./after 100
  mv spiral.bin "spiral.$n"
done
cmp spiral.1 spiral.4
echo "MPICH: the same bits on 1 and 4 ranks"
