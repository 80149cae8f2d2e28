# Everything that `make demo` needs:
#
#   docker build -t coursekit .
#   docker run --rm coursekit
#
# Another build of PyTorch: --build-arg TORCH=... --build-arg TORCH_INDEX=URL (README.md, Set-up).
FROM debian:12-slim

RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates git make python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /kit
COPY . .

ARG TORCH
ARG TORCH_INDEX
ENV TORCH=$TORCH TORCH_INDEX=$TORCH_INDEX
RUN make setup

CMD ["make", "demo"]
