# An image for all processes of a pool: `docker build -t gt .`; with a GPU build of PyTorch by
# `docker build -t gt --build-arg BASE=pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime --build-arg EXTRAS= .`
ARG BASE=python:3.11-slim
FROM ${BASE} AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml setup.py README.md LICENSE ./
COPY tensor_ops_cpp.py tensor_ops_cuda.py tensor_ops_opencl.py ./
COPY gt gt
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM ${BASE}
ARG EXTRAS=[torch]
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "gt${EXTRAS} @ file://$(ls /wheels/gt-*.whl)" && rm -rf /wheels
RUN useradd --uid 10001 --home-dir /tmp --shell /usr/sbin/nologin gt
USER 10001
WORKDIR /tmp
ENV HOME=/tmp PYTHONUNBUFFERED=1
CMD ["python", "-m", "gt", "--help"]
