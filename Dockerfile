# `tools` is what the kit needs of the system, as .devcontainer uses it; the rest is all that `make demo` needs:
#
#   docker build -t coursekit .
#   docker run --rm coursekit
#
# Another build of PyTorch: --build-arg TORCH=... --build-arg TORCH_INDEX=URL (README.md, Set-up).
FROM debian:12-slim AS tools

RUN apt-get update \
    && apt-get install -y --no-install-recommends \
    ca-certificates git iproute2 make openssh-client python3 python3-venv tmux \
    && rm -rf /var/lib/apt/lists/*

FROM tools

WORKDIR /kit
COPY . .

ARG TORCH
ARG TORCH_INDEX
ENV TORCH=$TORCH TORCH_INDEX=$TORCH_INDEX
RUN make setup

CMD ["make", "demo"]
