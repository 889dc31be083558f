#!/usr/bin/env bash
# The checks that need a CUDA device, as one short script (under 8 minutes): bash tests/gpu/run.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
timeout 460 python -m pytest tests/gpu -m gpu -v --timeout 300
