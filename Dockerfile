# Commands in a container: the report of a training in out/, and a sweep.
#   docker build -t repdyn .
#   docker run --rm -v "$PWD/out:/out" repdyn demo --no-browser -o /out
#   docker run --rm -v "$PWD/out:/out" -v "$HOME/.cache/huggingface:/root/.cache/huggingface" repdyn sweep EleutherAI/pythia-14m --store /out/pythia
FROM python:3.11-slim
WORKDIR /repdyn
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY src src
COPY callbacks callbacks
COPY configs configs
# the CPU's wheels of torch; leave the index out on a machine with a GPU
ARG INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir --extra-index-url "$INDEX" -c constraints.txt ".[sweep,gguf]"
ENTRYPOINT ["repdyn"]
CMD ["--help"]
