//! An address for one cluster, so that ports cannot collide: a loopback one, or one that pods of real nodes reach.
//! Must not return port numbers that the kernel may give to another process before a component listens on them.
//!
//! Linux answers on all of 127.0.0.0/8, and in the network of `testbed/in-network` on all of 10.68.0.0/16. Each cluster takes its own random address and holds one socket on it for as long as
//! it lives; another cluster that tries the same address and ports finds them taken. The classic way, to bind port 0,
//! close, and pass the number on, races with every other process, and an API server that restarts may find its port gone to
//! an outgoing connection. Ports here lie below the kernel's range for those (32768–60999).

use std::hash::{BuildHasher as _, RandomState};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};

use anyhow::{Context, Result};

/// The ports of one cluster, counted from its base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// Only we listen here: holding it reserves the others.
    Held,
    /// Clients of etcd.
    Etcd,
    /// Peers of etcd; there are none, but it listens.
    EtcdPeers,
    /// The API server.
    ApiServer,
    /// Health of the controller manager.
    ControllerManager,
    /// Health of the scheduler.
    Scheduler,
    /// kwok, the simulated kubelet of all nodes.
    Kubelet,
}

const PORTS: [Port; 7] =
    [Port::Held, Port::Etcd, Port::EtcdPeers, Port::ApiServer, Port::ControllerManager, Port::Scheduler, Port::Kubelet];

/// Where an address is drawn from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Network {
    /// 127.0.0.0/8: reached from this machine, not from containers.
    #[default]
    Loopback,
    /// 10.68.0.0/16, which exists within `testbed/in-network`: reached from containers of real nodes too.
    Nodes,
}

/// An address with free ports, reserved until it is dropped.
#[derive(Debug)]
pub struct Address {
    ip: Ipv4Addr,
    base: u16,
    _held: TcpListener,
}

impl Address {
    /// [`Self::reserve_in`] the loopback network.
    pub fn reserve() -> Result<Self> {
        Self::reserve_in(Network::Loopback)
    }

    /// Takes an address on which all [`Port`]s are free. A process that listens on 0.0.0.0 takes a port of every address,
    /// so the base port is drawn as well.
    pub fn reserve_in(network: Network) -> Result<Self> {
        let mut last = None;
        for _ in 0..100 {
            match Self::draw(network).take() {
                Ok(address) => return Ok(address),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| std::io::Error::other("nothing tried"))).context(match network {
            Network::Loopback => "no free address in 127.0.0.0/8 (the testbed needs Linux)",
            Network::Nodes => "no free address in 10.68.0.0/16 (it exists within testbed/in-network only)",
        })
    }

    fn draw(network: Network) -> Candidate {
        let random = RandomState::new().hash_one(0u8).to_le_bytes();
        let last = random[2].clamp(1, 254);
        let ip = match network {
            // Not 127.0.x.y, where distributions put resolvers; not .0 nor .255.
            Network::Loopback => Ipv4Addr::new(127, random[0].max(1), random[1], last),
            Network::Nodes => Ipv4Addr::new(10, 68, random[1], last),
        };
        // 10000..=30470 in steps of ten: room for the ports above, below the ephemeral ones.
        let base = 10_000 + 10 * (u16::from_le_bytes([random[3], random[4]]) % 2048);
        Candidate { ip, base }
    }

    /// The address all components of the cluster listen on.
    #[must_use]
    pub fn ip(&self) -> Ipv4Addr {
        self.ip
    }

    /// The socket address of `port`.
    #[must_use]
    pub fn at(&self, port: Port) -> SocketAddrV4 {
        SocketAddrV4::new(self.ip, self.base + port as u16)
    }
}

struct Candidate {
    ip: Ipv4Addr,
    base: u16,
}

impl Candidate {
    fn take(self) -> std::io::Result<Address> {
        let Self { ip, base } = self;
        let bind = |port: Port| TcpListener::bind((ip, base + port as u16));
        // Bound all at once, then all but one released to the components.
        let mut sockets = PORTS.into_iter().map(bind).collect::<std::io::Result<Vec<_>>>()?;
        let held = sockets.swap_remove(Port::Held as usize);
        Ok(Address { ip, base, _held: held })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_held_cannot_be_taken_again() {
        let address = Address::reserve().unwrap();
        let again = Candidate { ip: address.ip, base: address.base };
        assert!(again.take().is_err());
    }

    #[test]
    fn ports_of_a_held_address_are_free_for_components() {
        let address = Address::reserve().unwrap();
        for port in PORTS.into_iter().filter(|port| *port != Port::Held) {
            TcpListener::bind(address.at(port)).unwrap();
        }
    }
}
