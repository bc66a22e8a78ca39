#!/usr/bin/env bash
# slurm_test.sh SCRIPT PROGRAM: a Slurm of one node on this machine, from Debian's slurm-wlm; the
# batch script runs PROGRAM with two ranks, and hands SIGUSR2 on. Skipped where Slurm is not installed.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
script=$(realpath "$1") program=$(realpath "$2")
for need in slurmctld slurmd sbatch munged; do
  command -v "$need" >/dev/null || { echo "skipped: no $need here (Debian package slurm-wlm)"; exit 77; }
done
[[ $(id -u) -eq 0 ]] || { echo "skipped: starting slurmd needs root"; exit 77; }
if pgrep -x -r D,R,S slurmctld >/dev/null; then echo "skipped: a Slurm runs here already"; exit 77; fi

folder=$(mktemp -d)
stop() {
  for daemon in slurmd slurmctld munged; do
    if [[ -f $folder/$daemon.pid ]]; then kill "$(cat "$folder/$daemon.pid")" 2>/dev/null || true; fi
  done
  sleep 1
  rm -rf "$folder" || true
}
trap stop EXIT
chmod 755 "$folder"
mkdir "$folder/state" "$folder/spool"
dd if=/dev/urandom of="$folder/munge.key" bs=1024 count=1 2>/dev/null
chmod 400 "$folder/munge.key"
munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" \
  --pid-file="$folder/munged.pid" --log-file="$folder/munged.log" --seed-file="$folder/munge.seed"
host=$(hostname -s)
cat >"$folder/slurm.conf" <<EOF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
NodeName=$host NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
EOF
export SLURM_CONF=$folder/slurm.conf
slurmctld -f "$SLURM_CONF"
slurmd -f "$SLURM_CONF"
for _ in $(seq 60); do
  if sinfo -h 2>/dev/null | grep -q idle; then break; fi
  sleep 0.5
done
cd "$folder"

sbatch --wait --nodes=1 --ntasks-per-node=2 -o hello.log "$script" "$program" || { cat hello.log; exit 1; }
cat hello.log
grep -q '2 ranks agree' hello.log

(
  sleep 3
  scancel --batch --signal=USR2 "$(squeue -h -o %i)"
) &
code=0
# shellcheck disable=SC2016
sbatch --wait --nodes=1 --ntasks-per-node=2 -o save.log "$script" \
  bash -c 'trap "echo saved; exit 75" USR2; sleep 8 & wait' || code=$?
cat save.log
[[ $code -eq 75 && $(grep -c saved save.log) -eq 2 ]]
echo "slurm: two ranks, and SIGUSR2 handed on"
