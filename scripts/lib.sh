# Shared by the scripts here; sourced, never run. Each script sets `me` to its own name before.
# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154  # me

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck disable=SC2034  # used by the scripts that source this file
mpirun_flags=(--map-by :OVERSUBSCRIBE --bind-to none)
trainer_packages=(cmake ninja-build g++ libopenmpi-dev openmpi-bin libopenblas-dev zlib1g-dev
                  libcli11-dev nlohmann-json3-dev dataset-fashion-mnist)
# shellcheck disable=SC2034
test_packages=("${trainer_packages[@]}" catch2 python3 pkg-config iproute2)

say() { echo "$me: $*"; }
die() {
  echo "$me: $*" >&2
  exit 1
}
usage_error() {
  echo "$me: $* (see --help)" >&2
  exit 2
}

# The comment block at the top of the script, from its second line on, is its --help.
print_help() {
  sed -n '2,/^# SPDX/{/^# SPDX/d;s/^# \{0,1\}//;p}' "$1"
  exit 0
}

positive_number() {  # positive_number --flag VALUE
  [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || usage_error "$1 needs a positive number, got '${2:-}'"
}

# Open MPI refuses root unless told twice; in containers and CI root is all there is.
allow_root() {
  if [[ $(id -u) -eq 0 ]]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
}

installed() { [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }
offered() { apt-cache show "$1" >/dev/null 2>&1; }

# install_packages yes|no PACKAGE...: makes them be there, or says what to do and ends the script.
install_packages() {
  local may_install=$1 missing=() package
  shift
  if ! command -v apt-get >/dev/null; then
    for package in cmake mpirun; do
      command -v "$package" >/dev/null ||
        die "$package not found, and no apt-get here to get it; what is needed, by its Debian names: $*"
    done
    say "not a Debian or Ubuntu: the libraries needed are, by their Debian names: $*"
    return
  fi
  for package in "$@"; do
    installed "$package" || missing+=("$package")
  done
  # The photos are not in every release; without them the trainer takes the digits beside it.
  if [[ ${#missing[@]} -eq 1 && ${missing[0]} == dataset-fashion-mnist ]] && ! offered "${missing[0]}"; then
    missing=()
  fi
  [[ ${#missing[@]} -gt 0 ]] || return 0
  [[ $may_install == yes ]] || die "missing, and --no-install given: ${missing[*]}"
  [[ $(id -u) -eq 0 ]] || die "missing packages; run: sudo apt-get install -y ${missing[*]}"
  say "installing: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq || die "apt-get update failed"
  if ! offered dataset-fashion-mnist; then
    mapfile -t missing < <(printf '%s\n' "${missing[@]}" | grep -vx dataset-fashion-mnist)
  fi
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
    die "apt-get install ${missing[*]} failed"
}

# configure DIR CMAKE_ARGUMENTS...: with Ninja and ccache where they are.
configure() {
  local dir=$1 extra=()
  shift
  if [[ ! -f $dir/CMakeCache.txt ]] && command -v ninja >/dev/null; then extra+=(-G Ninja); fi
  if command -v ccache >/dev/null; then extra+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
  cmake -S "$root" -B "$dir" "${extra[@]}" "$@"
}
