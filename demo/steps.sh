# Sourced by the demos: puts both programs into PATH, and shows each step. Needs $here, $out and $steps, the number of steps.
# shellcheck shell=bash disable=SC2154

PATH="$here/../.venv/bin:$here/../trainer/.venv/bin:$PATH"
number=0
exec 3>&1 # the terminal, also if a step's own output goes to a file
step() { # TITLE COMMAND…: prints both and runs the command
  local command="${*:2}"
  command=${command//"$here"/demo}
  printf '\n[%d/%d] %s\n$ %s\n' $((++number)) "$steps" "$1" "${command//"${library:-/dev/null}"/LIB}" >&3
  "${@:2}"
}
trap 'echo "demo: stopped; the same command continues. To start over, remove $out or choose another OUTPUT." >&2' ERR INT TERM
