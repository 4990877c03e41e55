#!/bin/bash
# What only an accelerator can show, in at most six minutes: ends with 0, 1 (a FAIL line says why), or 3 without one.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=.venv/bin/python
[ -x "$python" ] || python=python3
status=0
timeout 350 "$python" -m tests.gpu.checks || status=$?
[ "$status" -ne 124 ] || echo "FAIL  not done after 350 s"
exit "$status"
