# The pipeline's image: for Dataflow's workers, for submitting jobs, and as the Flex Template's launcher. Build it from the
# root of the repository:
#
#   docker build --file deploy/pipeline.Dockerfile --build-arg IMAGE=REGISTRY/pipeline:TAG --tag REGISTRY/pipeline:TAG .
#
# All packages are installed here, from the lock; none when a job is launched or a worker starts.

# Must equal the lock's version of apache-beam: the SDK's boot binary has to match.
ARG BEAM=2.77.0
# The release in Google's samples. It contains a single binary, which does not depend on Python or its packages.
ARG LAUNCHER=20230622_RC00

FROM gcr.io/dataflow-templates-base/python311-template-launcher-base:${LAUNCHER} AS launcher

FROM apache/beam_python3.12_sdk:${BEAM} AS packages

# For the launcher: the first process of a container would ignore a SIGTERM that arrives before it has a handler for it.
RUN apt-get update && apt-get install --yes --no-install-recommends tini && rm -rf /var/lib/apt/lists/*

COPY --from=launcher /opt/google/dataflow/python_template_launcher /opt/google/dataflow/python_template_launcher

# pip would store the result of a search for its newest release.
ENV PIP_DISABLE_PIP_VERSION_CHECK=1

# The largest layer. It changes only with the lock. 0.4 GB are only for building custom operations of TensorFlow: its
# headers, and libclang. --no-deps, because the lock is complete: before version 23.3, pip looks for the newest release of a
# package of which another one requires an extra, and finds one that the lock does not have.
COPY requirements.lock /opt/tokenmill/
RUN pip install --no-cache-dir --require-hashes --no-deps --requirement /opt/tokenmill/requirements.lock \
    && cd "$(python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')" \
    && rm -r tensorflow/include clang

FROM packages AS wheel
# Beam's image has a compiler; this makes sure.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
COPY pyproject.toml README.md LICENSE /source/
COPY beam_pipeline /source/beam_pipeline
COPY tokenmill /source/tokenmill
COPY reader /source/reader
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheel /source /source/reader

FROM packages
COPY deploy/template_main.py /opt/tokenmill/
COPY --from=wheel /wheel /opt/tokenmill/wheel
RUN pip install --no-cache-dir --no-deps --no-index /opt/tokenmill/wheel/*.whl \
    && python -m beam_pipeline --help \
    && python -c "import sys; from beam_pipeline.native import library; sys.exit(library.rows_library() is None)" \
    && python -c "import sys; from tokenmill_reader import compiled; sys.exit(compiled.library() is None)"

ENV FLEX_TEMPLATE_PYTHON_PY_FILE=/opt/tokenmill/template_main.py \
    # Workers need no virtual environments of their own, since they install nothing. The workers of a pool would create
    # the same one: each of Flink's task managers gives its first worker the same id.
    RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1 \
    # The pipeline sets the number of threads; an additional pool in each process would only contend.
    TOKENIZERS_PARALLELISM=false

# The name of this image: the default of --sdk_container_image for jobs that are launched from it.
ARG IMAGE=""
ENV TOKENMILL_PIPELINE_IMAGE=${IMAGE}

# No USER: Dataflow mounts folders of the host that belong to root into workers' containers, and the SDK's boot binary
# writes to them. To use the image elsewhere: docker run --user 1000 --entrypoint tini IMAGE -- python -m beam_pipeline …
ENTRYPOINT ["/opt/apache/beam/boot"]
