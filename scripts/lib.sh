# Shared by the scripts here; sourced, never run. Each script sets `me` to its own name before.
# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154,SC2034  # me comes from, the lists go to the script

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
mpirun_flags=(--map-by :OVERSUBSCRIBE --bind-to none)
photos_package=dataset-fashion-mnist
trainer_packages=(cmake ninja-build g++ libopenmpi-dev openmpi-bin libopenblas-dev zlib1g-dev
                  libcli11-dev nlohmann-json3-dev)
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

# With the package lists that are there, else with new ones.
apt_install() {
  say "installing: $*"
  local get=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o APT::Install-Recommends=false)
  "${get[@]}" install -y "$@" >/dev/null 2>&1 && return
  "${get[@]}" update && "${get[@]}" install -y "$@" >/dev/null
}

# install_packages yes|no PACKAGE...: makes them be there, or says what to do and ends the script.
# The photos come along where they can be had (photos_package empty: they are not wanted).
install_packages() {
  local may_install=$1 missing=() photos_too=() package
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
  if [[ -n $photos_package ]] && ! installed "$photos_package"; then photos_too=("$photos_package"); fi
  if [[ ${#missing[@]} -gt 0 ]]; then
    local wanted=("${missing[@]}" "${photos_too[@]}")
    [[ $may_install == yes ]] || die "missing, and --no-install given: ${wanted[*]}"
    [[ $(id -u) -eq 0 ]] || die "missing packages; run: sudo apt-get install -y ${wanted[*]}"
    apt_install "${missing[@]}" || die "apt-get could not install ${missing[*]}"
  fi
  if [[ ${#photos_too[@]} -gt 0 && $may_install == yes && $(id -u) -eq 0 ]]; then
    apt_install "${photos_too[@]}" || say "$photos_package cannot be had here"
  fi
}

# configure DIR CMAKE_ARGUMENTS...: with Ninja and ccache where they are.
configure() {
  local dir=$1 extra=()
  shift
  if [[ ! -f $dir/CMakeCache.txt ]] && command -v ninja >/dev/null; then extra+=(-G Ninja); fi
  if command -v ccache >/dev/null; then extra+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
  cmake -S "$root" -B "$dir" "${extra[@]}" "$@"
}
