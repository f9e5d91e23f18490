#!/bin/sh
# Run the scripts of docs/scaling.md under Slurm, which this starts for as long as they run, and check their rows.
#
#   apt install slurm-wlm && PYTHON=.venv/bin/python sh checks/slurm.sh     as root, without another Slurm
#
# One node of two cores takes the place of several, and settings make the work small.
set -eu
folder=$(mktemp -d)
mkdir -p "$folder/state" "$folder/spool" /run/munge
export SLURM_CONF="$folder/slurm.conf" HOME="$folder" USE_GPU=0 RUNS=1 MAX_SECONDS=0.5 BATCH_SIZE=2 IMAGE_SIZE=64 SCOPE=device
cat >"$SLURM_CONF" <<END
ClusterName=here
SlurmctldHost=localhost
SlurmUser=root
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
NodeName=localhost CPUs=2 State=UNKNOWN
PartitionName=all Nodes=localhost Default=YES State=UP
END

daemons=
trap 'kill $daemons; wait; rm -rf "$folder"' EXIT
chown munge: /run/munge
for daemon in "runuser -u munge -- munged --foreground" "slurmctld -D -c" "slurmd -D -N localhost"; do
    $daemon 2>"$folder/log" &
    daemons="$daemons $!"
    sleep 3
done

awk -v folder="$folder" '!/^    / { file = "" } /^    #!/ { file = folder "/" ++count ".sh" }
    file { print substr($0, 5) >file }' docs/scaling.md
sed -i -e 's/--nodes=2 --ntasks-per-node=1/--nodes=1 --ntasks=2/; s/--cpus-per-task=[0-9]*/--cpus-per-task=1/' \
    -e 's/--gpus[a-z-]*=[0-9]//; s/--nproc-per-node=8/--nproc-per-node=1/; s/resnet50/squeezenet1_1/' \
    -e "s,/scratch/\$USER,$folder/scratch,; s/vit_b_16/resnet18/" "$folder"/[123].sh
# The standard set has its own batch and image sizes.
sed -i 's/make all/env -u BATCH_SIZE -u IMAGE_SIZE -u SCOPE -u MAX_SECONDS QUICK=1 make all/' "$folder/3.sh"
export RESULTS_DIR="$folder/results-of-the-cluster"
for script in "$folder"/[123].sh; do
    sbatch --wait --output="$folder/%j.txt" "$script" || { cat "$folder"/log "$folder"/*.txt; exit 1; }
done
cat "$folder"/*.txt
rows=$(cat "$RESULTS_DIR"/*.csv | grep -c ',ok,')
echo "$rows rows: one of two ranks, one of each task of the array, and those of the standard set"
[ "$rows" -gt 4 ]
