# The trainer's images, one target per kind of machine. Build them from the root of the repository:
#
#   docker build --file deploy/trainer.Dockerfile --target tpu --tag REGISTRY/trainer:TAG .
#   docker run --rm -v "$PWD:/data" REGISTRY/trainer:TAG-cpu fit --config tiny-mlm --data.train /data/…
#
# All packages are installed from the locks. A build without --target gives the last stage: the CPU image.

ARG PYTHON=python:3.12-slim-bookworm

FROM ${PYTHON} AS builder
RUN pip install --no-cache-dir uv==0.13.8 && python -m venv --without-pip /venv
# Compile bytecode once, not at each start.
ENV VIRTUAL_ENV=/venv UV_COMPILE_BYTECODE=1 UV_NO_CACHE=1
# 0.4 GB for building custom operations: TensorFlow's headers, and libclang.
ENV UNUSED="/venv/lib/python3.12/site-packages/tensorflow/include /venv/lib/python3.12/site-packages/clang"
WORKDIR /build

FROM builder AS tpu-packages
# --no-deps: the lock is complete, and excludes the distribution tensorflow, which would overwrite files of tensorflow-tpu.
COPY trainer/requirements-tpu.lock ./
RUN uv pip install --require-hashes --no-deps --requirements requirements-tpu.lock && rm -r $UNUSED

FROM builder AS pjrt-packages
COPY trainer/requirements-pjrt.lock ./
RUN uv pip install --require-hashes --requirements requirements-pjrt.lock && rm -r $UNUSED

FROM builder AS gpu-packages
COPY trainer/requirements-gpu.lock ./
RUN uv pip install --require-hashes --requirements requirements-gpu.lock && rm -r $UNUSED

FROM builder AS cpu-packages
COPY trainer/requirements.lock ./
RUN uv pip install --require-hashes --requirements requirements.lock && rm -r $UNUSED

FROM ${PYTHON} AS reader
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
COPY reader/tokenmill_reader /tokenmill_reader
RUN cc -O3 -g0 -fPIC -shared -o /tokenmill_reader/_records.abi3.so /tokenmill_reader/records.c

FROM ${PYTHON} AS base
# The first process of a container would ignore a SIGTERM that arrives before it has a handler for it.
RUN apt-get update && apt-get install --yes --no-install-recommends tini && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --create-home trainer
ENV PATH=/venv/bin:$PATH PYTHONPATH=/app PYTHONUNBUFFERED=1
WORKDIR /app
ENTRYPOINT ["tini", "--", "python", "-m", "tpu_trainer"]
CMD ["--help"]

# Each image has a layer of packages, which changes only with the lock, and small layers for the program.
FROM base AS tpu
COPY --from=tpu-packages /venv /venv
COPY --from=reader /tokenmill_reader ./tokenmill_reader
COPY trainer/tpu_trainer ./tpu_trainer
# No USER: a TPU's devices (/dev/accel*, /dev/vfio/*) belong to root, on TPU VMs and on Vertex AI.
# Fail now if a package is missing. Without TPU_LOAD_LIBRARY=0, libtpu would wait minutes for a TPU's metadata server.
RUN TPU_LOAD_LIBRARY=0 python -c "import libtpu, tensorflow; from tpu_trainer.verbs.command_line import parse" \
    && python -m tpu_trainer fit --help > /dev/null

# For --strategy pjrt on TPUs: TensorFlow only traces, on the CPU.
FROM base AS pjrt
COPY --from=pjrt-packages /venv /venv
COPY --from=reader /tokenmill_reader ./tokenmill_reader
COPY trainer/tpu_trainer ./tpu_trainer
# No USER, for the same reason.
RUN TPU_LOAD_LIBRARY=0 python -c "import jax, libtpu, tensorflow" \
    && python -m tpu_trainer fit --help > /dev/null

FROM base AS gpu
COPY --from=gpu-packages /venv /venv
COPY --from=reader /tokenmill_reader ./tokenmill_reader
COPY trainer/tpu_trainer ./tpu_trainer
RUN python -m tpu_trainer fit --help > /dev/null
USER 10001

FROM base AS cpu
COPY --from=cpu-packages /venv /venv
COPY --from=reader /tokenmill_reader ./tokenmill_reader
COPY trainer/tpu_trainer ./tpu_trainer
RUN python -m tpu_trainer fit --help > /dev/null
USER 10001
