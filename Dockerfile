# One image for every process of ours; docker-compose.yml says which command each runs.
# trixie has the newer runsc of Debian's two current ones.
FROM python:3.13-slim-trixie
RUN apt-get update \
 && apt-get install -y --no-install-recommends runsc git \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY requirements.lock ./
RUN pip install --no-cache-dir -r requirements.lock
COPY . .
ENV PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 ASTROLABE_VAR=/data ASTROLABE_ARTIFACTS=/data/artifacts
EXPOSE 8000
CMD ["python", "-m", "uvicorn", "webapp.asgi:application", "--host", "0.0.0.0", "--port", "8000"]
