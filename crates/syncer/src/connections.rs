//! The way to each of the two clusters: whether it answers, and which cluster it last said it is.
//! Says what changed; what follows from it is for the pair to do.

use tapestry_cluster::probe::Connection;
use tapestry_cluster::{Side, Uid};

/// Reason of conditions of bindings and virtual nodes.
pub(crate) const PHYSICAL_RESTORED: &str = "PhysicalClusterRestored";

/// Both of them.
#[derive(Default)]
pub(crate) struct Connections([Link; 2]);

/// The way to one cluster.
struct Link {
    connection: Connection,
    /// Which cluster it was when it last answered, while it does not.
    last: Option<Uid>,
}

/// What a fact about a connection changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transition {
    /// It answers for the first time, or goes on as before.
    Same,
    /// It answers after it did not, or as another cluster: what is known of it may be old.
    Back,
    /// It stops answering.
    Lost,
}

impl Default for Link {
    fn default() -> Self {
        Self { connection: Connection::Unknown, last: None }
    }
}

impl Connections {
    /// Folds in how a cluster is reached now.
    pub(crate) fn observe(&mut self, side: Side, connection: Connection) -> Transition {
        let link = &mut self.0[side as usize];
        let before = std::mem::replace(&mut link.connection, connection);
        let answered = matches!(before, Connection::Up(_));
        let transition = match &link.connection {
            Connection::Up(_) if before != Connection::Unknown => Transition::Back,
            Connection::Up(_) => Transition::Same,
            _ if answered => Transition::Lost,
            Connection::Unknown | Connection::Down(_) | Connection::Refused(_) | Connection::Restored(_) => {
                Transition::Same
            }
        };
        if let Connection::Up(identity) = before {
            link.last = Some(identity);
        }
        transition
    }

    /// How a cluster is reached.
    pub(crate) fn get(&self, side: Side) -> &Connection {
        &self.0[side as usize].connection
    }

    /// Whether a cluster answers at the moment, whichever it is.
    pub(crate) fn answers(&self, side: Side) -> bool {
        matches!(self.get(side), Connection::Up(_))
    }

    /// Which cluster it last said it is, kept while it does not answer.
    pub(crate) fn identity(&self, side: Side) -> Option<&Uid> {
        match self.get(side) {
            Connection::Up(identity) => Some(identity),
            _ => self.0[side as usize].last.as_ref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_that_stops_answering_is_still_known_by_its_last_identity() {
        let (mut connections, side) = (Connections::default(), Side::Physical);
        let up = |uid: &str| Connection::Up(Uid::new(uid));
        assert_eq!(connections.observe(side, up("a")), Transition::Same, "the first word");
        assert_eq!(connections.observe(side, Connection::Down("timeout".to_owned())), Transition::Lost);
        assert_eq!(connections.observe(side, Connection::Down("refused".to_owned())), Transition::Same);
        assert_eq!((connections.answers(side), connections.identity(side)), (false, Some(&Uid::new("a"))));
        assert_eq!(connections.observe(side, up("b")), Transition::Back);
        assert_eq!((connections.answers(side), connections.identity(side)), (true, Some(&Uid::new("b"))));
        assert_eq!(connections.identity(Side::Virtual), None, "the other side is another");
    }
}
