#!/usr/bin/env bash
# usage: train_preemptible.sh NAME ZONE TYPE FLAGS of tpudet train
# Trains on a TPU that may be taken away: creates the Spot machine NAME, installs tpudet there, runs
# `tpudet train --backend jax FLAGS` on it, and after a preemption does it all again until the run is
# finished; then it deletes the machine. It runs where the TPU is not: on any machine with gcloud.
# The model_dir and the data must be in a bucket, for the disk goes with the machine. The training
# continues where the connection is lost: the next one shows how.
# variables: INSTALL, the command that installs tpudet there, such as pip install of a wheel in a bucket
#     (docs/tpu.md); PYTHON, which has tpudet then (python3); RUNTIME (v2-alpha-tpuv5-lite);
#     RETRY_SECONDS (60); ATTEMPTS on one machine without a new checkpoint, before it gives up (10)
# exit codes: 0 finished, 2 wrong usage, else that of tpudet train, 255 if the machine cannot be reached,
#     or, after three attempts, that of INSTALL
# example: INSTALL="..." train_preemptible.sh det-1 us-west4-a v5litepod-8 --config r50_fpn_640 \
#     --model_dir gs://bucket/saved/r50-coco --set data.directory=gs://bucket/converted/coco
set -uo pipefail

usage() { sed -n '2,${/^#/!q;s/^# \{0,1\}//p}' "$0"; }
if [[ ${1:-} == --help || ${1:-} == -h ]]; then
    usage
    exit
fi
if [[ -z ${INSTALL:-} || $# -lt 4 || $1 == -* || $2 == -* || $3 == -* || " $* " != *" --model_dir"[\ =]"gs://"* ]]; then
    usage >&2
    exit 2
fi
name=$1 zone=$2 type=$3
shift 3
retry=${RETRY_SECONDS:-60} limit=${ATTEMPTS:-10}
arguments=" $*" model_dir=${arguments##* --model_dir[ =]}
model_dir=${model_dir%% *}

say() { echo "$(date '+%F %T') train_preemptible: $*"; }
tpu() { gcloud compute tpus tpu-vm "$1" "$name" --zone "$zone" "${@:2}"; }
look() {
    local state
    state=$(tpu describe --format 'value(state)' 2>/dev/null) || state=NONE
    echo "$state"
}
newest_checkpoint() { gcloud storage cat "$model_dir/checkpoint" 2>/dev/null; }
delete() { tpu delete --quiet || say "could not delete $name: it still costs money"; }
# A machine that is cut off closes no connection: unasked, ssh would wait for it for two hours.
on_machine() {
    tpu ssh --worker=all --command "$1" -- \
        -o ServerAliveInterval=30 -o ServerAliveCountMax=6 -o ConnectTimeout=30
}

finish() {
    delete
    say "$2"
    exit "$1"
}

# Prints the output of the run, which is a process of the machine's own: one that lives is followed, for
# a second one would be refused. Its lock says that it lives, however this connection ended. The last
# line says how it ended; it is missing if the machine or the connection went away. gcloud's own exit
# code tells nothing of that.
train() {
    local flags
    printf -v flags ' %q' "$@"
    on_machine "exec 9>tpudet_train.lock
lines=20
if flock --nonblock 9; then
    : >tpudet_train.log
    (trap '' HUP; ${PYTHON:-python3} -m tpudet train --backend jax$flags; echo tpudet_exit \$?) \
        >>tpudet_train.log 2>&1 </dev/null &
    lines=+1
fi
exec 9>&-
flock tpudet_train.lock true >/dev/null 2>&1 &
echo tpudet_follows
tail --lines \$lines --follow --pid \$! tpudet_train.log
true" </dev/null 2>&1 # or tail would replace the shell, and see its ended child for ever
}

# Counts the attempts since the last new checkpoint.
count_attempt() {
    local found
    found=$(newest_checkpoint)
    if [[ -n $found && $found != "$newest" ]]; then
        newest=$found attempts=0 trained=yes
    fi
    ((++attempts))
}

trap 'say "stopped; delete the machine: gcloud compute tpus tpu-vm delete $name --zone $zone"; exit 130' INT TERM
installed='' failures=0 attempts=0 newest=$(newest_checkpoint) trained=''
while true; do
    state=$(look)
    case $state in
    READY)
        ((attempts < limit)) || finish "$code" "gave up after $attempts attempts on $name without a new checkpoint"
        if [[ -z $installed ]]; then
            on_machine "$INSTALL" </dev/null || {
                code=$?
                say "the installation on $name failed with $code"
                # 255 is ssh's own: the machine is not up yet, or the connection was lost.
                if ((code == 255)); then count_attempt; else ((++failures)); fi
                ((failures < 3)) || finish "$code" "gave up after three failed installations"
                sleep "$retry"
                continue
            }
            installed=yes failures=0
        fi
        # Opened by its name, stderr would be cut to nothing where it is a file.
        code=$(train "$@" | tee >(cat >&2) |
            sed -n 's/.*tpudet_exit \([0-9]*\).*/\1/p; s/.*tpudet_follows.*/-1/p' | sort -n | tail -1)
        [[ $code == 0 || $code == -1 ]] || count_attempt
        case $code in
        0) finish 0 "finished" ;;
        1 | 2)
            # A machine that goes takes devices and connections along, and shows it a little later.
            sleep "$retry"
            [[ $(look) == READY ]] || continue
            # 2 is also a bucket that does not answer, and for three minutes the claim of a lost process.
            [[ $code == 2 && -n $trained ]] || finish "$code" "tpudet train ended with $code"
            say "ended with 2 where it has trained before"
            continue
            ;;
        75) say "stopped with its state saved" ;; # and the machine is about to go
        129 | 13? | 14?) say "ended by signal $((code - 128))" ;;
        -1) say "lost the connection; the training continues if $name does" ;;
        "") code=255 && say "could not connect" ;;
        *) finish "$code" "tpudet train ended with $code" ;;
        esac
        [[ $code == 255 ]] || trained=yes
        sleep "$retry"
        ;;
    NONE)
        installed='' failures=0 attempts=0
        say "creating $name ($type)"
        tpu create --accelerator-type "$type" --version "${RUNTIME:-v2-alpha-tpuv5-lite}" --spot ||
            { say "no machine; trying again in $retry s"; sleep "$retry"; }
        ;;
    CREATING | STARTING | RESTARTING | REPAIRING) sleep "$retry" ;;
    *)
        say "$name is $state: deleting it"
        delete
        sleep "$retry"
        ;;
    esac
done
