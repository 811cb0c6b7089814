package main

const usage = `A Kubernetes control plane for tests, in one program.

usage: controlplane up [--dir DIR] [--kwok PROGRAM] [--with-controllers=false] ...
           brings a control plane up, prints one JSON line when it is ready, and
           takes it down on SIGTERM, SIGINT or "down" ("up --help" lists the flags)
       controlplane status --dir DIR
       controlplane down --dir DIR
       controlplane start|stop|kill|restart|pause|resume --dir DIR PART
           acts on one part of a running control plane: etcd, kube-apiserver,
           kube-controller-manager, kube-scheduler or kwok
       controlplane PART|kubectl [ARGUMENT ...]
           is that program itself
`
