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
    -e 's/--gpus[a-z-]*=[0-9]//; s/NUM_DEVICES=8/NUM_DEVICES=1/; s/resnet50/squeezenet1_1/' \
    -e "s,/scratch/\$USER,$folder/scratch,; s/vit_b_16/resnet18/" "$folder"/[123].sh
# The standard set has its own batch and image sizes.
sed -i 's/make all/env -u BATCH_SIZE -u IMAGE_SIZE -u SCOPE -u MAX_SECONDS QUICK=1 make all/' "$folder/3.sh"
export RESULTS_DIR="$folder/results-of-the-cluster"
for script in "$folder"/[123].sh; do
    sbatch --wait --output="$folder/%j.txt" "$script" || { cat "$folder"/log "$folder"/*.txt; exit 1; }
done
cat "$folder"/*.txt
"$PYTHON" - <<'END'
import collections, csv, glob, os

rows = [row for path in glob.glob(os.environ["RESULTS_DIR"] + "/*.csv") for row in csv.DictReader(open(path))]
found = collections.Counter((row["model"], row["world_size"]) for row in rows if row["status"] == "ok")
print(len(rows), "rows:", *found)
for model, world_size in [("squeezenet1_1", "2"), ("squeezenet1_1", "1"), ("mobilenet_v2", "1"), ("resnet18", "1")]:
    assert found.pop((model, world_size), 0), f"no row of {model} by {world_size} processes"
assert found, "no row of the standard set"
END
