# The server in a container: docker build -t atoll . (docs/deployment.md)
FROM python:3.12-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY protos protos
COPY common common
COPY client client
COPY server server
COPY datacenter datacenter
ARG EXTRAS=server,otel
RUN python -m venv /opt/atoll \
    && /opt/atoll/bin/pip install --no-cache-dir -c constraints.txt ".[${EXTRAS}]"

FROM python:3.12-slim-bookworm
RUN groupadd --gid 10001 atoll \
    && useradd --uid 10001 --gid atoll --no-create-home --home-dir /var/lib/atoll --shell /usr/sbin/nologin atoll \
    && install --directory --mode 0700 --owner atoll --group atoll /var/lib/atoll /var/cache/atoll
COPY --from=build /opt/atoll /opt/atoll
# Commands by `docker exec` reach the server by loopback: the advertised name may lead nowhere from inside.
ENV PATH=/opt/atoll/bin:$PATH ATOLL_DATA=/var/lib/atoll ATOLL_SERVER=127.0.0.1:7400 NUMBA_CACHE_DIR=/var/cache/atoll PYTHONUNBUFFERED=1
USER atoll
VOLUME /var/lib/atoll
# Main, enrolment, transfers (with --workers 2 and more), metrics and health (on the container's loopback).
EXPOSE 7400 7401 7402
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=10s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:7403/readyz', timeout=8)"]
ENTRYPOINT ["atoll", "server", "start", "--host", "0.0.0.0", "--json-log"]
