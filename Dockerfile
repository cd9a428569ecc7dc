# The command in a container: `docker build -t codecl .`, then `docker run --rm -v "$PWD:/mnt" codecl run --out runs/a`.
FROM python:3.11-slim

# PyTorch's index of CPU builds keeps the image small: --build-arg PIP_EXTRA_INDEX_URL=…, as pytorch.org names it.
ARG PIP_EXTRA_INDEX_URL

WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir -c constraints.txt '.[demo,data,report]' \
    && useradd --create-home codecl

USER codecl
WORKDIR /mnt
ENTRYPOINT ["codecl"]
CMD ["--help"]
