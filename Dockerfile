# Four images: `broker` runs korvet on a Redis or Valkey, `report` adds Spark and Java for `korvet report`, `spark` is for
# drivers and executors on Kubernetes, and `redis` is a Valkey with korvet's server module. The licences of their packages
# are in /opt/korvet/LICENSES.txt; crc32c has the LGPL.

FROM python:3.12.11-slim-bookworm AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# The compiled kernels and the server module need a C compiler, and the jar for Spark Connect one of Java; the final
# images don't.
# Debian has one version of a package per release, so there is nothing to pin.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev openjdk-17-jdk-headless \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml setup.py README.md LICENSE pyspark_korvet.py ./
COPY tools/licenses.py tools/licenses.py
COPY offsets offsets
COPY spark spark
COPY korvet korvet
COPY deploy/grafana deploy/grafana
COPY deploy/prometheus deploy/prometheus
RUN python -m venv /opt/korvet \
    && KORVET_REQUIRE_EXT=1 /opt/korvet/bin/pip install --no-cache-dir '.[oauth]' \
    && cp "$(/opt/korvet/bin/korvet module)" /opt/korvet_module.so \
    && /opt/korvet/bin/python tools/licenses.py > /opt/korvet/LICENSES.txt

FROM valkey/valkey:8.1.4-bookworm AS redis
COPY --from=build /opt/korvet_module.so /usr/local/lib/korvet_module.so

FROM python:3.12.11-slim-bookworm AS broker
# jemalloc makes the embedded server faster.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends libjemalloc2 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 korvet \
    && install -d -o korvet -g korvet /data
COPY --from=build /opt/korvet /opt/korvet
ENV PATH=/opt/korvet/bin:$PATH
USER 10001:10001
WORKDIR /data
EXPOSE 9092
HEALTHCHECK --interval=5s --timeout=10s --start-period=60s --retries=6 CMD ["korvet", "ready"]
ENTRYPOINT ["korvet"]
CMD ["serve", "--listen", "0.0.0.0:9092"]

FROM build AS build-report
# The newest PySpark with Delta.
RUN KORVET_REQUIRE_EXT=1 /opt/korvet/bin/pip install --no-cache-dir '.[kafka]' 'pyspark<4.3' \
    && /opt/korvet/bin/python tools/licenses.py > /opt/korvet/LICENSES.txt

FROM broker AS report
USER 0:0
# Spark starts Java and Python workers: tini reaps them, and passes signals on, which the kernel keeps from a first process
# without handlers.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless tini \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o korvet -g korvet /report
COPY --from=build-report /opt/korvet /opt/korvet
# For stored tables.
ENV KORVET_JARS_DIR=/opt/korvet-jars
RUN korvet jars delta && chown -R korvet:korvet /opt/korvet-jars
USER 10001:10001
WORKDIR /report
HEALTHCHECK NONE
ENTRYPOINT ["tini", "--", "korvet"]
CMD ["report", "--help"]

FROM report AS spark
USER 0:0
COPY deploy/kubernetes/spark-entrypoint.sh /opt/spark-entrypoint.sh
RUN cp /opt/korvet-jars/delta-*.jar /opt/korvet/lib/python3.12/site-packages/pyspark/jars/
USER 10001:10001
ENV SPARK_HOME=/opt/korvet/lib/python3.12/site-packages/pyspark \
    PYSPARK_PYTHON=/opt/korvet/bin/python \
    PYSPARK_DRIVER_PYTHON=/opt/korvet/bin/python
ENTRYPOINT ["tini", "--", "/opt/spark-entrypoint.sh"]
CMD ["spark-submit", "--version"]
