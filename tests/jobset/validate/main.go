// Checks the JobSets of standard input, a JSON document each, as a cluster does: the types of the API, decoded strictly; the
// custom resource's schema; JobSet's defaults and rules; and the rules of Kubernetes for the jobs and pods it creates.
// Prints "valid" or the errors, a line for each JobSet. The argument is the file of the custom resource's definition.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/batch"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	batchvalidation "k8s.io/kubernetes/pkg/apis/batch/validation"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/jobset/pkg/webhooks"
	"sigs.k8s.io/yaml"
)

func main() {
	resource, err := readDefinition(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	documents := json.NewDecoder(os.Stdin)
	for {
		var document json.RawMessage
		if err := documents.Decode(&document); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			log.Fatal(err)
		}
		if err := resource.check(document); err != nil {
			fmt.Println(strings.ReplaceAll(err.Error(), "\n", "; "))
		} else {
			fmt.Println("valid")
		}
	}
}

// definition is the schema of the custom resource, in the two forms that an API server uses.
type definition struct {
	structural *schema.Structural
	validator  validation.SchemaValidator
}

func readDefinition(path string) (*definition, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var read apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(text, &read); err != nil {
		return nil, err
	}
	var properties apiextensions.JSONSchemaProps
	given := read.Spec.Versions[0].Schema.OpenAPIV3Schema
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(given, &properties, nil); err != nil {
		return nil, err
	}
	structural, err := schema.NewStructural(&properties)
	if err != nil {
		return nil, err
	}
	validator, _, err := validation.NewSchemaValidator(&properties)
	return &definition{structural, validator}, err
}

func (resource *definition) check(document []byte) error {
	var set jobset.JobSet
	if err := decodeStrictly(document, &set); err != nil {
		return err
	}
	var untyped map[string]any
	if err := json.Unmarshal(document, &untyped); err != nil {
		return err
	}
	errs := validation.ValidateCustomResource(nil, untyped, resource.validator)
	options := schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}
	for _, path := range pruning.PruneWithOptions(untyped, resource.structural, true, options) {
		errs = append(errs, field.Invalid(field.NewPath(path), "", "is not in the schema"))
	}
	if len(errs) > 0 {
		return errs.ToAggregate()
	}
	for i := range set.Spec.ReplicatedJobs {
		// The schema's defaults, which the webhook requires.
		if set.Spec.ReplicatedJobs[i].GroupName == "" {
			set.Spec.ReplicatedJobs[i].GroupName = "default"
		}
	}
	webhook, err := webhooks.NewJobSetWebhook(nil)
	if err != nil {
		return err
	}
	if err := webhook.Default(context.Background(), &set); err != nil {
		return err
	}
	if _, err := webhook.ValidateCreate(context.Background(), &set); err != nil {
		return err
	}
	for _, replicated := range set.Spec.ReplicatedJobs {
		if err := checkJob(&set, replicated); err != nil {
			return err
		}
	}
	return nil
}

func decodeStrictly(document []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
}

// checkJob checks the last job of a ReplicatedJob as the API server does when JobSet's controller creates it.
func checkJob(set *jobset.JobSet, replicated jobset.ReplicatedJob) error {
	given := batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Name:      fmt.Sprintf("%s-%s-%d", set.Name, replicated.Name, replicated.Replicas-1),
			Namespace: set.Namespace,
			UID:       "11111111-2222-3333-4444-555555555555",
		},
		Spec: replicated.Template.Spec,
	}
	given.Spec.Template.Spec.Subdomain = set.Name
	legacyscheme.Scheme.Default(&given)
	var job batch.Job
	if err := legacyscheme.Scheme.Convert(&given, &job, nil); err != nil {
		return err
	}
	// The API server sets both before it validates a job.
	labels := map[string]string{"batch.kubernetes.io/controller-uid": string(given.UID), "controller-uid": string(given.UID)}
	labels["batch.kubernetes.io/job-name"], labels["job-name"] = given.Name, given.Name
	job.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"batch.kubernetes.io/controller-uid": string(given.UID)}}
	for name, value := range job.Spec.Template.Labels {
		labels[name] = value
	}
	job.Spec.Template.Labels = labels
	options := podutil.GetValidationOptionsFromPodTemplate(&job.Spec.Template, nil)
	errs := batchvalidation.ValidateJob(&job, batchvalidation.JobValidationOptions{
		PodValidationOptions:  corevalidation.PodValidationOptions(options),
		RequirePrefixedLabels: true,
	})
	return errs.ToAggregate()
}
