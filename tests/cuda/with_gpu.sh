#!/usr/bin/env bash
# with_gpu.sh HAVE_GPU COMMAND...: runs the command, or exits with 77 where there is no GPU.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
"$1" || exit "$?"
shift
exec "$@"
