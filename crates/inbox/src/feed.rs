//! The way of deliveries into the lanes, and how many there is room for.

use tokio::sync::{mpsc, watch};

use crate::engine::Delivered;

/// Deliveries on their way; beyond, whoever brings more waits.
const FED_MAX: usize = 256;

/// What a session takes deliveries from.
pub(crate) struct Intake {
    pub(crate) deliveries: mpsc::Receiver<Delivered>,
    /// Dropped when nothing more is to be brought.
    pub(crate) room: watch::Sender<usize>,
}

/// What brings deliveries to a session.
#[derive(Clone)]
pub(crate) struct Feed {
    deliveries: mpsc::Sender<Delivered>,
    room: watch::Receiver<usize>,
}

/// The session takes nothing more.
pub(crate) struct Closed;

pub(crate) fn open() -> (Feed, Intake) {
    let (room, wanted) = watch::channel(0);
    let (fed, deliveries) = mpsc::channel(FED_MAX);
    (Feed { deliveries: fed, room: wanted }, Intake { deliveries, room })
}

impl Feed {
    /// Waits for room for at least so many, and says for how many there is.
    pub(crate) async fn room_for(&mut self, least: usize) -> Result<usize, Closed> {
        let room = self.room.wait_for(|room| *room >= least).await;
        room.map(|room| *room).map_err(|_| Closed)
    }

    pub(crate) async fn bring(&self, delivered: Delivered) -> Result<(), Closed> {
        self.deliveries.send(delivered).await.map_err(|_| Closed)
    }

    /// Returns when the session stops taking.
    pub(crate) fn closed(&self) -> impl Future<Output = ()> + use<> {
        let mut room = self.room.clone();
        async move { while room.changed().await.is_ok() {} }
    }

    /// Whether nobody takes what is brought.
    pub(crate) fn is_closed(&self) -> bool {
        self.deliveries.is_closed()
    }
}
