//! Connections: accepting clients, TLS, the bytes of bodies, and limits on time, connections and memory.
//!
//! This folder does not know the protocols. [`accept`] serves a router on the connections of a listener.

pub(crate) mod accept;
pub(crate) mod access_log;
pub(crate) mod body;
pub(crate) mod budget;
pub(crate) mod connection;
mod freed_memory;
pub(crate) mod held_body;
pub(crate) mod incomplete_bodies;
pub(crate) mod limits;
pub(crate) mod tcp_sockets;
pub(crate) mod tls;
#[cfg(unix)]
pub(crate) mod unix_socket;
