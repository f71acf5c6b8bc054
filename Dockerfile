# Penstock in a container: to run as it is, and to build images with a model from.  docs/how-to/containers.md says how.
#
# BASE is an image of Debian or Ubuntu, without build tools.  Its Python is 3.11 or later; where it has none, as images
# with CUDA have none, that of apt is: Debian 12, Ubuntu 24.04 and whatever is newer.
ARG BASE=python:3.11-slim

# -- what needs a compiler, and is left behind ------------------------------------------------------------------------
FROM ${BASE} AS build
# g++ and not gcc alone: a library of the extra `onnx` is C++, and has no wheels.
RUN apt-get update && apt-get install --yes --no-install-recommends g++
# The headers of a Python that is apt's; one of its own, as that of BASE by default, brings them.
RUN case "$(command -v python3)" in \
      "" | /usr/bin/python3) apt-get install --yes --no-install-recommends python3 python3-dev python3-venv ;; \
    esac
RUN python3 -m venv /opt/penstock
WORKDIR /build
COPY pyproject.toml setup.py README.md LICENSE ./
COPY src src
# Extras of pyproject.toml, with commas between; or none.
ARG EXTRAS=numpy
# 1 insists on a compiled build; 0 makes none, in a fraction of the time.
ARG PENSTOCK_COMPILE=1
RUN /opt/penstock/bin/pip install ".${EXTRAS:+[$EXTRAS]}"
# A build tool, which the venv of an older Python has.  pip stays: images that are built from this one need it.
RUN /opt/penstock/bin/pip uninstall --yes setuptools

# -- what is shipped --------------------------------------------------------------------------------------------------
FROM ${BASE}
RUN command -v python3 || { apt-get update && apt-get install --yes --no-install-recommends python3 \
      && rm -rf /var/lib/apt/lists/*; }
# Libraries look for a home folder, to keep what they have downloaded.
RUN useradd --uid 10001 --user-group --create-home --no-log-init penstock
COPY --from=build /opt/penstock /opt/penstock
ENV PATH=/opt/penstock/bin:$PATH
# `penstock health` is configured by these variables too: change them, and not flags, to be found by it.
ENV PENSTOCK_HOST=0.0.0.0
WORKDIR /service
# By number, so that Kubernetes sees that it is not root.
USER 10001
EXPOSE 8000
STOPSIGNAL SIGTERM
# While models load it is not ready, which counts only after the start period.
HEALTHCHECK --interval=10s --timeout=10s --start-period=10m --retries=3 CMD ["penstock", "health"]
ENTRYPOINT ["penstock"]
CMD ["serve", "model:service"]
