#!/usr/bin/env bash
# A real SLURM on this machine alone: `one_node_slurm.sh start FOLDER [PORT [SETTING...]]`, `one_node_slurm.sh stop FOLDER`.
#
# All that it writes lies in FOLDER; who sets SLURM_CONF=FOLDER/slurm.conf uses it. Partition `debug` is one node with
# eight fake GPUs; partition `two` adds a second node, which is the same machine again. Needs root and Debian's packages
# slurm-wlm and munge.
set -euo pipefail

start() {
    local folder=$1 port=${2:-16817} host
    local settings=("${@:3}")  # lines of slurm.conf
    host=$(hostname -s)
    mkdir -p "$folder"/{state,gpus,spool.n1,spool.n2}
    for gpu in {0..7}; do
        [ -e "$folder/gpus/$gpu" ] || mknod "$folder/gpus/$gpu" c 1 3 # as /dev/null
    done
    echo "NodeName=n1 Name=gpu File=$folder/gpus/[0-7]" >"$folder/gres.conf"
    cat >"$folder/slurm.conf" <<CONF
ClusterName=one_node
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=2
# More CPUs than there may be: what matters here is how many jobs run at once.
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SwitchType=switch/none
GresTypes=gpu
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool.%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.%n.log
SlurmctldPort=$port
KillWait=10
MinJobAge=3600
JobRequeue=1
PropagateResourceLimits=NONE
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=12 Gres=gpu:8 State=UNKNOWN
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=8 State=UNKNOWN
PartitionName=debug Nodes=n1 Default=YES MaxTime=INFINITE DefaultTime=10 State=UP
PartitionName=two Nodes=n1,n2 MaxTime=INFINITE DefaultTime=10 State=UP
$(printf '%s\n' "${settings[@]}")
CONF
    export SLURM_CONF=$folder/slurm.conf
    [ -e "$folder/munge.key" ] || (umask 077 && head -c 1024 /dev/urandom >"$folder/munge.key")
    munged --force --socket="$folder/munge.socket" --key-file="$folder/munge.key" --pid-file="$folder/munged.pid" \
        --log-file="$folder/munged.log" --seed-file="$folder/munged.seed"
    slurmctld -c
    slurmd -N n1
    slurmd -N n2
    for _ in {1..100}; do
        [ "$(timeout 5 sinfo --noheader --partition=two --format='%t %D' 2>/dev/null)" = "idle 2" ] && return
        sleep 0.1
    done
    tail -n 5 "$folder"/*.log >&2
    return 1
}

# Jobs first: they would outlive the daemons.
stop() {
    local folder=$1 pid
    export SLURM_CONF=$folder/slurm.conf
    timeout 5 scancel --user="$(id -u)" || true
    for _ in {1..150}; do
        [ -z "$(timeout 5 squeue --noheader)" ] && break
        sleep 0.1
    done
    for pid in "$folder"/*.pid; do
        kill "$(cat "$pid")" || true
    done
    for _ in {1..100}; do
        compgen -G "$folder/*.pid" >/dev/null || return 0 # each removes its own when it ends
        sleep 0.1
    done
}

"$@"
