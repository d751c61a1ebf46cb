# Plain instructions only: scripts/check_image.py reads this file and rehearses every step without a Docker engine.

FROM python:3.11-slim AS build
WORKDIR /src
COPY . .
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
COPY --from=build /wheels /wheels
RUN python -m pip install --no-cache-dir "$(echo /wheels/*.whl)[kafka]"

# The kernel cache belongs to the user of the image: numba ignores a cache folder that it cannot write to.
# NUMBA_CPU_NAME=generic: machine code for one processor would be compiled again on any other one. This gives up wide
# vector instructions; with -e NUMBA_CPU_NAME= a container compiles for its own processor at its first start.
ENV HOME=/var/lib/streammoe \
    NUMBA_CACHE_DIR=/opt/streammoe/kernels \
    NUMBA_CPU_NAME=generic \
    PYTHONUNBUFFERED=1
RUN mkdir -p /etc/streammoe /opt/streammoe/kernels /var/lib/streammoe \
    && chown -R 10001:10001 /opt/streammoe/kernels /var/lib/streammoe

# A number, so that an orchestrator can see that it is not root.
USER 10001:10001
RUN streammoe compile

WORKDIR /var/lib/streammoe
# The only locations written to, except /tmp: docker run --read-only --tmpfs /tmp --cap-drop ALL
# --security-opt no-new-privileges works. The kernels are a volume because numba ignores a cache that it cannot write to;
# Docker fills it from the image. It contains machine code: mount nothing there that others may write to.
VOLUME ["/var/lib/streammoe", "/opt/streammoe/kernels"]
# Metrics listen on loopback by default; to scrape them from outside: docker run -e STREAMMOE_METRICS__HOST=0.0.0.0
EXPOSE 9464
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9464/healthz', timeout=4).close()"]
# Finish the batch, save, exit 0.
STOPSIGNAL SIGTERM
ENTRYPOINT ["streammoe"]
CMD ["run", "/etc/streammoe/config.toml"]
