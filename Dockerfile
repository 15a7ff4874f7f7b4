# formerlab with everything in requirements.lock, for docker and apptainer (docs/cluster.md).
#
#   docker build --tag formerlab .                            the CUDA build of torch; the CPU build, a tenth of the size:
#   docker build --tag formerlab --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu .
#   docker run --rm --shm-size=8g --volume "$PWD:/project" formerlab init mine
#   apptainer build formerlab.sif docker-daemon:formerlab:latest && apptainer run --nv --bind "$PWD:/project" formerlab.sif
FROM python:3.12-slim

# Kernels are compiled where they run: Triton's launcher and torch.compile call a C++ compiler. git names commits.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ git \
    && rm -rf /var/lib/apt/lists/*

# Everything but formerlab itself, in a layer that lasts as long as the lock.
ARG TORCH_INDEX=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /opt/formerlab
COPY requirements.lock .
RUN if [ -n "$TORCH_INDEX" ]; then \
        pip install --no-deps --constraint requirements.lock --index-url "$TORCH_INDEX" torch torchvision; \
    fi \
    && pip install --requirement requirements.lock

COPY pyproject.toml README.md LICENSE NOTICE Snakefile config.yaml ./
COPY profiles profiles
COPY slurm slurm
COPY cluster cluster
COPY workflow workflow
COPY src src
RUN pip install --no-deps --no-build-isolation .

# Any user may run it (apptainer runs as the caller), and what it writes lies in the mounted folder.
ENV HOME=/tmp OMP_NUM_THREADS=1 MLFLOW_DISABLE_TELEMETRY=true HF_HUB_DISABLE_TELEMETRY=1
WORKDIR /project
ENTRYPOINT ["formerlab"]
CMD ["--help"]
