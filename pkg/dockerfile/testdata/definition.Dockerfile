FROM base AS one
ENV A="it is" A.B=c
RUN apt-get update && echo "it's"
RUN cat > /o <<"EOF"
%files
EOF
FROM one AS two
USER bob
RUN --mount=type=cache,target=/cc --mount=from=one,source=x,target=/m ls
COPY --chown=1 src top /d/
COPY top /x/
ADD t.tgz /u/
ADD --unpack=false t.tgz /n
FROM base
COPY top /first/
COPY --from=two /a /b
WORKDIR /w
RUN --network=none printf 'one
RUN two \
  three
COPY <<E /h/
hello
{{ x }}
E
CMD ["a", "b c"]
ENTRYPOINT ["foo"]
LABEL a=b c="d e" "f g"=h
MAINTAINER me
VOLUME /v
STOPSIGNAL SIGINT
HEALTHCHECK --interval=5s CMD true
ONBUILD RUN x
EXPOSE 80
