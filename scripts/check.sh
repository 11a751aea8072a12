#!/usr/bin/env bash
# The checks of this repository, one a subcommand. `.ci/run`, the GitHub workflows and contributors
# call the same ones. Run it from anywhere; it works in the repository that it lies in.
#
#   scripts/check.sh test [ARG ...]    README's test command: make .venv, install, run all but the slow tests
#   scripts/check.sh fast [ARG ...]    the same tests in an environment that exists
#   scripts/check.sh slow [ARG ...]    the tests that README's command leaves out, but for the weekly ones
#   scripts/check.sh weekly [ARG ...]  the tests that protect from rare damage only
#   scripts/check.sh lowest [ARG ...]  the fast tests with the lowest versions of pyproject.toml, in .venv-lowest
#   scripts/check.sh coverage          report what `fast` and `slow` ran, and fail below the agreed share
#   scripts/check.sh install GROUP ... install the package and dependency groups into .venv
#   scripts/check.sh style             ruff, its formatter, and mypy
#   scripts/check.sh docs              build the pages; warnings and links that lead nowhere are errors
#   scripts/check.sh tutorials         run every notebook in tutorials/, without changing it
#   scripts/check.sh build [DIR]       sdist, and a wheel from it: what PyPI would show, and whether it works
#   scripts/check.sh demo              README's demo command, and whether it wrote its files
#
# Tools are taken from .venv if there is one, else from the PATH. The two README commands are read
# from README itself, so that what is checked is what it says. With COVERAGE=1, `test` and `fast`
# begin a file .coverage and `slow` adds to it, so run `slow` second.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() { sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }

# The block behind `<!-- NAME -->` in README, as somebody would copy it.
readme_command() {
  local command
  command=$(awk -v name="<!-- $1 -->" '
    $0 == name { found = 1; next }
    found && /^```/ { if (inside) exit; inside = 1; next }
    inside
  ' README.md)
  [ -n "$command" ] || { echo "README.md has lost its $1 command" >&2; exit 1; }
  printf '%s\n' "$command"
}

# Runs a tool of .venv, or of the PATH.
tool() {
  local name=$1
  shift
  if [ -x ".venv/bin/$name" ]; then ".venv/bin/$name" "$@"; else command "$name" "$@"; fi
}

# Only both parts of the test suite together are held against the agreed share, by `coverage`.
with_coverage() {
  if [ "${COVERAGE:-0}" = 1 ]; then
    export PYTEST_ADDOPTS="--cov --cov-report= --cov-fail-under=0 $* ${PYTEST_ADDOPTS:-}"
  fi
}

# `fast`, `slow` and `weekly` together are all tests only as long as README leaves out exactly these;
# every weekly test is marked slow, too.
FAST=(-n logical -m "not slow")
SLOW=(-n logical -m "slow and not weekly")
WEEKLY=(-n logical -m weekly)
LOWEST_WARNINGS=$'default\nerror:::tosica(\\..*)?'
check_test_command() {
  case $(readme_command test) in
    *"&& .venv/bin/pytest -n logical -m \"not slow\"") ;;
    *)
      echo "README's test command and scripts/check.sh leave out different tests" >&2
      exit 1
      ;;
  esac
}

action=${1:-help}
[ $# -eq 0 ] || shift
case $action in
  test)
    check_test_command
    with_coverage
    if [ $# -gt 0 ]; then export PYTEST_ADDOPTS="${PYTEST_ADDOPTS:-} $*"; fi
    eval "$(readme_command test)"
    ;;
  fast)
    check_test_command
    with_coverage
    tool pytest "${FAST[@]}" "$@"
    ;;
  slow)
    check_test_command
    with_coverage --cov-append
    tool pytest "${SLOW[@]}" "$@"
    ;;
  weekly)
    tool pytest "${WEEKLY[@]}" "$@"
    ;;
  lowest)
    # pip always takes the newest version; uv can take the lowest of what pyproject.toml names itself.
    [ -d .venv-uv ] || python3 -m venv .venv-uv
    .venv-uv/bin/pip install -U uv
    .venv-uv/bin/uv venv --clear --python 3.11 .venv-lowest
    .venv-uv/bin/uv pip install --python .venv-lowest/bin/python \
      --resolution lowest-direct -e '.[atlas,census,hub,leiden,parquet]' --group test
    .venv-lowest/bin/python scripts/check_lowest.py
    # Old versions warn about the newest ones of what they need themselves. Only what they warn
    # tosica about is an error here.
    .venv-lowest/bin/pytest "${FAST[@]}" -o "filterwarnings=$LOWEST_WARNINGS" "$@"
    ;;
  coverage)
    tool coverage json --quiet --fail-under=0 -o - | tool python -c '
import json, sys
totals = json.load(sys.stdin)["totals"]
covered, branches = totals["covered_branches"], totals["num_branches"]
print(f"Branches: {covered} of {branches}, {100 * covered / branches:.1f} %")
'
    tool coverage report
    ;;
  install)
    [ -d .venv ] || python3 -m venv .venv
    groups=()
    for group in "$@"; do groups+=(--group "$group"); done
    .venv/bin/pip install -U pip
    .venv/bin/pip install -e . "${groups[@]}"
    ;;
  style)
    tool ruff check .
    tool ruff format --check .
    tool mypy
    ;;
  docs)
    tool sphinx-build -W --keep-going -q -b html docs docs/_build/html
    tool python scripts/check_links.py docs/_build/html
    ;;
  tutorials)
    # Developers have the data beside the checkout; elsewhere they are downloaded.
    if [ -z "${TOSICA_DATA:-}" ] && [ -d ../shared/data ]; then
      TOSICA_DATA=$(cd ../shared/data && pwd)
      export TOSICA_DATA
    fi
    tool python scripts/run_tutorials.py --check tutorials/*.ipynb
    ;;
  build)
    tool python -m build --outdir "${1:-dist}"
    tool twine check --strict "${1:-dist}"/*
    tool python scripts/check_wheel.py "${1:-dist}"/*.whl
    tool python scripts/try_wheel.py "${1:-dist}"/*.whl
    ls -l "${1:-dist}"
    ;;
  demo)
    eval "$(readme_command demo)"
    for name in annotated.h5ad report.html; do
      test -s "tosica_demo/$name"
    done
    ;;
  help | -h | --help)
    usage
    ;;
  *)
    echo "scripts/check.sh does not know $action" >&2
    usage >&2
    exit 2
    ;;
esac
