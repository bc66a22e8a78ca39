#!/usr/bin/env bash
# usage: scripts/quickstart.sh [--no-install] [--data DIR] [--jobs N]
#
# Installs what is missing (apt), builds the product-image classifier in build/ and trains it with
# 4 ranks on this machine (with CUDA, NCCL and GPUs: one rank on each of up to 4 GPUs): on the photos of Debian's dataset-fashion-mnist, or where that cannot be
# had on the handwritten digits in examples/data. The last line is the result:
#   quickstart: ok backend=host ranks=4 val_accuracy=0.8912 samples_per_second=41230 checkpoint=DIR
#
#   --no-install  do not install; end with the list of what is missing
#   --data DIR    train on the files there; dataset-fashion-mnist is not installed
#   --jobs N      parallel compile jobs (default: processors)
#   --help        this text
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

me=quickstart
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

install=yes
jobs=$(nproc)
data=''
while [[ $# -gt 0 ]]; do
  case $1 in
    --no-install) install=no ;;
    --data) [[ -d ${2:-} ]] || die "--data: no folder '${2:-}'"; data=$(realpath "$2"); shift ;;
    --jobs) positive_number "$1" "${2:-}"; jobs=$2; shift ;;
    --help) print_help "$0" ;;
    *) usage_error "unknown option $1" ;;
  esac
  shift
done

stage="installing packages"
trap 'echo "quickstart: failed while $stage" >&2' ERR
[[ -z $data ]] || photos_package=''
install_packages "$install" "${trainer_packages[@]}"
if [[ -z $data ]]; then
  data=/usr/share/datasets/fashion-mnist
  if [[ ! -d $data ]]; then
    data=$root/examples/data
    say "no photos here (Debian package $photos_package): training on handwritten digits"
  fi
fi
allow_root

build=$root/build
run=$build/quickstart
ranks=4

stage="configuring $build"
fresh=()
[[ -f $build/CMakeCache.txt ]] || fresh=(-DPOLYRANK_BUILD_TESTS=OFF -DCMAKE_BUILD_TYPE=Release)
configure "$build" "${fresh[@]}"
stage="building train_classifier"
cmake --build "$build" --target train_classifier --parallel "$jobs"

# The program takes CUDA by itself where every rank has a GPU of its own.
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true)
if [[ $gpus -gt 0 && -n $(grep -E '^NCCL_LIBRARY:FILEPATH=/' "$build/CMakeCache.txt" || true) ]]; then
  ranks=$((gpus < 4 ? gpus : 4))
fi

stage="training (the lines above say why)"
rm -rf "$run" && mkdir -p "$run"
mpirun "${mpirun_flags[@]}" -n "$ranks" "$build/bin/train_classifier" --data "$data" --epochs 12 \
  --out "$run" --checkpoint "$run/checkpoint" --json "$run/result.json"

stage="reading $run/result.json"
field() { grep -Eo "\"$1\": *\"?[-+.0-9a-zA-Z]+" "$run/result.json" | head -n 1 | sed 's/.*[ :"]//'; }
export LC_ALL=C
val_accuracy=$(printf %.4f "$(field val_accuracy)")
samples_per_second=$(printf %.0f "$(field samples_per_second)")
say "pictures: $run"
say "ok backend=$(field backend) ranks=$(field ranks) val_accuracy=$val_accuracy" \
  "samples_per_second=$samples_per_second checkpoint=$run/checkpoint"
