# Plain instructions only: scripts/check_image.py reads this file and rehearses every step without a Docker engine.

FROM python:3.11-slim@sha256:3c1dfceb3f1267d4d378e7883cddf35c58757bab98d70bba30b6e02e808fa21d AS base

FROM base AS build
WORKDIR /src
RUN python -m pip install --no-cache-dir uv==0.13.9
COPY . .
# Names of optional dependencies (pyproject.toml), separated by blanks.
ARG EXTRAS=kafka
# What is installed, with versions and digests of uv.lock: for pip, and as a bill of materials (CycloneDX) for scanners.
RUN mkdir /wheels && set -- --quiet --frozen --no-dev --no-emit-project \
    && for extra in $EXTRAS; do set -- "$@" --extra "$extra"; done \
    && python -m uv export "$@" --output-file /wheels/requirements.txt \
    && python -m uv export "$@" --format cyclonedx1.5 --output-file /wheels/streammoe.cdx.json \
    && python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM base
COPY --from=build /wheels /wheels
# Nobody runs the tests of SciPy, NumPy and numba, 65 MB. Bytecode of these, which is large, is written only of what a
# daemon imports, when kernels are compiled.
RUN python -m pip install --no-cache-dir --no-compile --require-hashes --requirement /wheels/requirements.txt \
    && python -m pip install --no-cache-dir --no-compile --no-deps /wheels/*.whl \
    && python -m compileall -q -x '/(numba|numpy|pip|river|scipy)/' /usr/local/lib/python3.11/site-packages \
    && find /usr/local/lib/python3.11/site-packages -type d -name tests -prune -exec rm -r {} + \
    && mkdir -p /usr/local/share/sbom \
    && mv /wheels/streammoe.cdx.json /usr/local/share/sbom/

# The kernel cache belongs to the user of the image: numba ignores a cache folder that it cannot write to.
# NUMBA_CPU_NAME=generic: machine code for one processor would be compiled again on any other one. This gives up wide
# vector instructions; with -e NUMBA_CPU_NAME= a container compiles for its own processor at its first start.
ENV HOME=/var/lib/streammoe \
    NUMBA_CACHE_DIR=/opt/streammoe/kernels \
    NUMBA_CPU_NAME=generic \
    PYTHONUNBUFFERED=1
RUN mkdir -p /etc/streammoe /opt/streammoe/kernels /var/lib/streammoe \
    && streammoe compile \
    && chown -R 10001:10001 /opt/streammoe/kernels /var/lib/streammoe

# A number, so that an orchestrator can see that it is not root.
USER 10001:10001

WORKDIR /var/lib/streammoe
# The only locations written to, except /tmp: docker run --read-only --tmpfs /tmp --cap-drop ALL
# --security-opt no-new-privileges works. The kernels are a volume because numba ignores a cache that it cannot write to;
# Docker fills it from the image. It contains machine code: mount nothing there that others may write to.
VOLUME ["/var/lib/streammoe", "/opt/streammoe/kernels"]
# Metrics listen on loopback by default; to scrape them from outside: docker run -e STREAMMOE_METRICS__HOST=0.0.0.0
EXPOSE 9464
# By the settings, with metrics or without.
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s --retries=3 \
    CMD ["streammoe", "status", "/etc/streammoe/config.toml", "--check"]
# Finish the batch, save, exit 0.
STOPSIGNAL SIGTERM
ENTRYPOINT ["streammoe"]
CMD ["run", "/etc/streammoe/config.toml"]

# Last, because they differ from build to build.
ARG VERSION=unknown
ARG REVISION=
ARG SOURCE=
# For metrics and checkpoints, too.
ENV STREAMMOE_REVISION=$REVISION
LABEL org.opencontainers.image.title="streammoe" \
      org.opencontainers.image.description="Learns a mixture of experts from files and Kafka topics, each event once" \
      org.opencontainers.image.licenses="BSD-3-Clause" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.source="$SOURCE"
