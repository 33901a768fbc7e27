# The image that prepares datasets: at once what Dataflow's workers run, what submits jobs, and the Flex Template's
# launcher. Build it from the repository's root:
#
#   docker build --file deploy/pipeline.Dockerfile --build-arg IMAGE=REGISTRY/pipeline:TAG --tag REGISTRY/pipeline:TAG .
#
# Everything is installed here, from the lock: nothing is when a job is launched or a worker starts.

# The lock's version of apache-beam: the SDK's start-up binary must be of the same.
ARG BEAM=2.77.0
# Google's own samples name this one; it holds a single binary, which depends on no version of Python's packages.
ARG LAUNCHER=20230622_RC00

FROM gcr.io/dataflow-templates-base/python311-template-launcher-base:${LAUNCHER} AS launcher

FROM apache/beam_python3.11_sdk:${BEAM}

COPY --from=launcher /opt/google/dataflow/python_template_launcher /opt/google/dataflow/python_template_launcher

# By far the largest layer, and it changes with the lock only.
COPY requirements.lock /opt/tokenmill/
RUN pip install --no-cache-dir --require-hashes --requirement /opt/tokenmill/requirements.lock

COPY setup.py pyproject.toml README.md /opt/tokenmill/
COPY beam_pipeline /opt/tokenmill/beam_pipeline
COPY deploy/template_main.py /opt/tokenmill/
RUN pip install --no-cache-dir --no-deps --no-build-isolation /opt/tokenmill \
    && rm -rf /opt/tokenmill/beam_pipeline /opt/tokenmill/build /opt/tokenmill/*.egg-info \
    && python -m beam_pipeline --help

ENV FLEX_TEMPLATE_PYTHON_PY_FILE=/opt/tokenmill/template_main.py \
    # Engines are given their threads by the pipeline; a pool of HF's own in each process would only contend.
    TOKENIZERS_PARALLELISM=false

# Which image this is: jobs that are launched from inside it run in it, unless --sdk_container_image says otherwise.
ARG IMAGE=""
ENV TOKENMILL_PIPELINE_IMAGE=${IMAGE}

# No USER: Dataflow starts workers' containers with folders of the host's, which belong to root, and the SDK's start-up
# binary writes there. To use the image elsewhere: docker run --user 1000 --entrypoint python IMAGE -m beam_pipeline …
ENTRYPOINT ["/opt/apache/beam/boot"]
