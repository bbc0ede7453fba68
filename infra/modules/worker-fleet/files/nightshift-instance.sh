#!/usr/bin/env bash
# What an instance does around its worker's container. Called by nightshift-worker.service alone, which sets
# IMAGE, REGION, GROUP, HOOK, LOG_GROUP, GPU, DRAIN_SECONDS, CONTAINER_USER and ARGUMENTS.
set -euo pipefail

readonly CONTAINER=nightshift-worker
readonly SCRATCH=/var/lib/nightshift
# In memory, and readable by root alone.
readonly SECRETS=/run/nightshift/secrets.env
# In memory: the registry's password is not written to a disk.
export DOCKER_CONFIG=/run/nightshift/docker

# metadata PATH: prints what IMDS has there; fails if it has nothing.
metadata() {
  local token
  token=$(curl --silent --fail --max-time 2 --retry 3 --request PUT \
    --header 'X-aws-ec2-metadata-token-ttl-seconds: 60' http://169.254.169.254/latest/api/token)
  curl --silent --fail --max-time 2 --header "X-aws-ec2-metadata-token: $token" \
    "http://169.254.169.254/latest/meta-data/$1"
}

is_terminating() {
  [[ $(metadata autoscaling/target-lifecycle-state || true) == Terminated ]]
}

# Succeeds unless the instance is to be terminated or interrupted.
stays() {
  if is_terminating || metadata spot/instance-action >/dev/null; then
    echo 'the instance is about to go: no worker is started'
    return 1
  fi
}

# Mounts the instance store, if the type has one, where the models go; else they lie on the root volume.
mount_scratch() {
  local device
  mkdir -p "$SCRATCH"
  if mountpoint --quiet "$SCRATCH"; then
    return
  fi
  # The Deep Learning AMIs mount it themselves.
  if mountpoint --quiet /opt/dlami/nvme; then
    mkdir -p /opt/dlami/nvme/nightshift
    mount --bind /opt/dlami/nvme/nightshift "$SCRATCH"
    return
  fi
  device=$(lsblk --nodeps --noheadings --output PATH,MODEL |
    awk '/NVMe Instance Storage/ && !device { device = $1 } END { print device }')
  if [[ -z $device ]]; then
    return
  fi
  if ! blkid "$device" >/dev/null; then
    mkfs.xfs -q "$device"
  fi
  mount -o noatime,nodev,noexec,nosuid "$device" "$SCRATCH"
}

pull_image() {
  local registry=${IMAGE%%/*}
  if docker image inspect "$IMAGE" >/dev/null 2>&1; then
    return
  fi
  if [[ $registry =~ ^[0-9]+\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com ]]; then
    aws ecr get-login-password --region "${BASH_REMATCH[1]}" |
      docker login --username AWS --password-stdin "$registry"
  fi
  docker pull --quiet "$IMAGE"
}

# Reads the secrets that /etc/nightshift/secrets names, one NAME=ARN a line, into the worker's environment.
read_secrets() {
  local name arn value
  (umask 077 && : >"$SECRETS")
  while IFS='=' read -r name arn; do
    value=$(aws secretsmanager get-secret-value --region "$REGION" --secret-id "$arn" \
      --query SecretString --output text </dev/null)
    if [[ -z $value || $value == None || $value == *$'\n'* ]]; then
      echo "the secret $arn for $name must be text of one line: no worker is started" >&2
      return 1
    fi
    printf '%s=%s\n' "$name" "$value" >>"$SECRETS"
  done </etc/nightshift/secrets
}

prepare() {
  mount_scratch
  install -d -o "$CONTAINER_USER" -g "$CONTAINER_USER" -m 0750 "$SCRATCH/models"
  install -d -m 0700 "$DOCKER_CONFIG"
  read_secrets
  pull_image
  docker rm --force "$CONTAINER" >/dev/null 2>&1 || true
}

run() {
  local instance memory_kib
  local -a gpus=() further=()
  instance=$(metadata instance-id)
  # The system keeps 1 GiB.
  memory_kib=$(awk '/^MemTotal:/ { print $2 - 1048576 }' /proc/meminfo)
  if [[ $GPU == true ]]; then
    gpus=(--gpus all)
  fi
  read -ra further <<<"$ARGUMENTS"
  exec docker run --rm --name "$CONTAINER" \
    --env-file /etc/nightshift/worker.env \
    --env-file "$SECRETS" \
    "${gpus[@]}" \
    --user "$CONTAINER_USER:$CONTAINER_USER" \
    --read-only \
    --tmpfs /tmp:rw,noexec,nosuid,size=256m \
    --mount "type=bind,src=$SCRATCH/models,dst=/scratch/models" \
    --cap-drop ALL \
    --security-opt no-new-privileges \
    --pids-limit 4096 \
    --memory "${memory_kib}k" --memory-swap "${memory_kib}k" \
    --stop-timeout "$DRAIN_SECONDS" \
    --log-driver awslogs \
    --log-opt "awslogs-region=$REGION" \
    --log-opt "awslogs-group=$LOG_GROUP" \
    --log-opt "awslogs-stream=$instance" \
    --log-opt mode=non-blocking \
    --log-opt max-buffer-size=4m \
    "$IMAGE" worker "${further[@]}"
}

# Lets the group end a drained instance at once, not after the hook's 300 seconds.
stopped() {
  if ! is_terminating; then
    return
  fi
  aws autoscaling complete-lifecycle-action --region "$REGION" \
    --auto-scaling-group-name "$GROUP" --lifecycle-hook-name "$HOOK" \
    --instance-id "$(metadata instance-id)" --lifecycle-action-result CONTINUE ||
    echo 'the lifecycle action was not completed: the hook ends by itself'
}

case ${1:-} in
stays | prepare | run | stopped) "$1" ;;
*)
  echo "usage: nightshift-instance stays|prepare|run|stopped" >&2
  exit 2
  ;;
esac
