//! Closed questions about a text, and the probabilities of their answers.

use crate::report::placement::AnsweringDevice;

/// Maximum number of questions of one request.
pub const MAX_QUESTIONS: usize = 200;

/// Maximum number of options of a question: each has a letter.
pub const MAX_OPTIONS: usize = 26;

/// Closed questions about a text.
///
/// ```
/// use narthex_gateway::request::{ClosedQuestion, DecisionRequest, QuestionForm};
///
/// let refund = ClosedQuestion {
///     instructions: "Does the customer want a refund?".to_owned(),
///     form: QuestionForm::YesNo { yes: None, no: None },
/// };
/// let request = DecisionRequest { state: "The parcel arrived broken.".to_owned(), questions: vec![refund] };
/// assert_eq!(request.questions[0].form.options(), 2);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecisionRequest {
    /// Text that the questions are about.
    pub state: String,
    /// Questions, at most [`MAX_QUESTIONS`]. Each is answered on its own, from the state.
    pub questions: Vec<ClosedQuestion>,
}

/// A question with a fixed set of answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClosedQuestion {
    /// The question, or what to decide.
    pub instructions: String,
    /// Possible answers.
    pub form: QuestionForm,
}

/// The possible answers to a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuestionForm {
    /// Yes or no.
    YesNo {
        /// Description of yes.
        yes: Option<String>,
        /// Description of no.
        no: Option<String>,
    },
    /// One of at most [`MAX_OPTIONS`] options.
    Choice(Vec<DecisionOption>),
}

impl QuestionForm {
    /// Returns the number of possible answers.
    pub fn options(&self) -> usize {
        match self {
            Self::YesNo { .. } => 2,
            Self::Choice(options) => options.len(),
        }
    }
}

/// A possible answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecisionOption {
    /// Label.
    pub label: String,
    /// Description.
    pub description: Option<String>,
}

/// Decisions in the order of the questions.
#[derive(Debug, Clone, PartialEq)]
pub struct Decisions {
    /// One decision for each question.
    pub decisions: Vec<Decision>,
    /// Number of tokens of all prompts.
    pub prompt_tokens: usize,
    /// Number of prompt tokens whose keys and values were in the cache, such as those of the state after the first
    /// question.
    pub cached_tokens: usize,
    /// Device that computed the decisions.
    pub ran_on: AnsweringDevice,
}

/// The answer to a closed question.
///
/// ```
/// use narthex_gateway::request::Decision;
///
/// let decision = Decision { probabilities: vec![0.25, 0.75], option_mass: 0.9 };
/// assert_eq!((decision.best(), decision.confidence(), decision.expected()), (1, 0.5, 0.75));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Probability of each option, in their order; yes comes before no. The sum is 1.
    pub probabilities: Vec<f64>,
    /// Share of the model's own distribution that fell on the options. A low share means that the model would have answered
    /// something else.
    pub option_mass: f64,
}

impl Decision {
    /// Returns the index of the most probable option; of equal ones, the first.
    pub fn best(&self) -> usize {
        let mut best = 0;
        for (index, probability) in self.probabilities.iter().enumerate() {
            if *probability > self.probabilities[best] {
                best = index;
            }
        }
        best
    }

    /// Returns `(n · peak − 1) / (n − 1)` for `n` options: 1 if one option has all the probability, and 0 if all are
    /// equally probable.
    pub fn confidence(&self) -> f64 {
        let count = self.probabilities.len() as f64;
        let peak = self.probabilities.iter().copied().fold(0.0, f64::max);
        if count < 2.0 { 1.0 } else { ((count * peak - 1.0) / (count - 1.0)).clamp(0.0, 1.0) }
    }

    /// Returns the expected index of the option.
    pub fn expected(&self) -> f64 {
        self.probabilities.iter().enumerate().map(|(index, probability)| index as f64 * probability).sum()
    }
}
